"""A job's data in an object store: a local S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline.data.cache import cached
from syncline.data.errors import DataError
from syncline.data.shards import TokenShards, verify
from syncline_proto.depot import Depot
from syncline_testing import buckets
from syncline_testing.training import tiny_data

pytest.importorskip("s3fs", reason="s3fs is not installed")
server = pytest.importorskip("moto.server", reason="moto is not installed")

pytestmark = buckets.QUIET


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with buckets.bucket(server, "data") as url:
        yield url


def test_it_is_fetched_once_and_read_here(tmp_path: Path, bucket: str) -> None:
    folder = tiny_data(tmp_path / "tokens")
    depot = Depot(f"{bucket}/tokens")
    for file in sorted(folder.iterdir()):
        depot.put(file.name, [file.read_bytes()])
    copy = cached(f"{bucket}/tokens", tmp_path / "cache")
    shards = TokenShards.open(copy)
    verify(copy, shards.manifest, lambda _: None)
    assert shards.manifest == TokenShards.open(folder).manifest
    with pytest.raises(DataError, match="no readable prepared data at s3://data/none"):
        cached(f"{bucket}/none", tmp_path / "cache")
