"""A bucket of a local server; the module that asks for it skips where there is none."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec  # pyright: ignore[reportMissingTypeStubs]
import pytest
from fsspec.config import conf  # pyright: ignore[reportMissingTypeStubs]

from syncline.launch.ports import free_ports

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


ELSEWHERE = {"gs": ("gcsfs", "fake-gcs-server"), "az": ("adlfs", "azurite-blob")}
"""By scheme: the package that speaks to such a store, and the command of a local server."""

_AZURITE = "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=" + (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The account that every Azurite has."""


@contextmanager
def elsewhere(scheme: str, name: str, folder: Path) -> Iterator[str]:
    """An empty bucket of Google's kind, or container of Azure's; ``folder`` is the server's."""
    (port,) = free_ports(1)
    at, command = f"http://127.0.0.1:{port}", ELSEWHERE[scheme][1]
    argv = {
        "gs": ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"],
        "az": ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck"],
    }[scheme]
    more = {"gs": ["-external-url", at], "az": ["--location", str(folder)]}[scheme]
    with pytest.MonkeyPatch.context() as patch, (folder / "log").open("wb") as log:
        if scheme == "gs":
            # What asks for a bucket's kind asks Google itself.
            patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
            patch.setitem(conf, "gs", {"token": "anon", "endpoint_url": at})
        else:
            known = f"{_AZURITE};BlobEndpoint={at}/devstoreaccount1;"
            patch.setenv("AZURE_STORAGE_CONNECTION_STRING", known)
        server = subprocess.Popen([command, *argv, *more], stdout=log, stderr=log)
        try:
            _wait_for(at, server)
            fsspec.get_filesystem_class(scheme).clear_instance_cache()
            if scheme == "gs":
                body = json.dumps({"name": name}).encode()
                made = urllib.request.Request(f"{at}/storage/v1/b", body, method="POST")
                urllib.request.urlopen(made, timeout=20).close()
            else:
                fsspec.filesystem(scheme).mkdir(name)
            yield f"{scheme}://{name}"
        finally:
            server.kill()  # it keeps nothing
            server.wait(20)


def _wait_for(at: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until it answers, whatever that is."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(at, timeout=20).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server has ended")
