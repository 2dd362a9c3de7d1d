"""A bucket of a local S3 server; the module that asks for it skips where there is none."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec  # pyright: ignore[reportMissingTypeStubs]
import pytest

QUIET = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""For what asks one: these are boto's and the server's own, not ours."""


@contextmanager
def bucket(server: Any, name: str) -> Iterator[str]:
    """An empty one; credentials and the server's address are in the environment.

    ``server`` is the module ``moto.server``.
    """
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        made = urllib.request.Request(f"http://{host}:{port}/{name}", method="PUT")
        urllib.request.urlopen(made, timeout=20).close()
        # Clients are kept by fsspec, and would ask an earlier server.
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield f"s3://{name}"
    running.stop()
