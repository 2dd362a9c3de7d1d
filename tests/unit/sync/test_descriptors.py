"""Want of file descriptors: waited out for a while, then told with what to do; damages nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy.random  # noqa: F401  NumPy would open it when it is first used
import pytest
from structlog.testing import capture_logs

from syncline_proto.descriptors import raise_limit
from syncline_proto.errors import StoreDamaged, StoreError
from syncline_proto.rest import Membership
from syncline_sync import calling, descriptors, files, seating, serving
from syncline_sync.descriptors import limit
from syncline_testing.linked import link_to, running
from syncline_testing.stored import fragment, revision


@contextmanager
def soft_limit(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("number", "way"),
    [
        (errno.EMFILE, "Allow more open files"),
        (errno.ENFILE, "Allow more open files"),
        (errno.ENOMEM, "Allow it more memory"),
        (errno.ENOSPC, "Free the disk or mend it"),
        (errno.ENOENT, "Bring its folder back"),
    ],
)
def test_what_the_system_lacks_is_not_blamed_on_the_disk(number: int, way: str) -> None:
    path = Path("there")
    with pytest.raises(StoreError, match=f"{way}.*, then start the service again"):  # noqa: SIM117
        with files.writing(path):
            raise OSError(number, os.strerror(number), str(path))


def test_a_folder_that_cannot_be_listed_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(seating, "_of_others", refuses)
    with pytest.raises(StoreError, match=r"Cannot look into .*Allow more open files"):
        seating.take_seat(tmp_path, 0, 1)


def test_a_port_that_no_descriptor_is_left_for_is_not_to_be_another() -> None:
    scant = OSError(errno.EMFILE, "Too many open files")
    said = serving._refused(scant, "127.0.0.1", 1, "port").message
    assert said.endswith("(Too many open files). Allow more open files (ulimit -n; the whole "
                         "machine: fs.file-max).")  # fmt: skip


def test_the_limit_is_raised_to_what_is_allowed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with soft_limit(hard - 1):
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    with soft_limit(100):
        assert limit() == 100


def test_the_store_waits_for_every_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none whatever it opens, until it waits; and none again after that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waited: list[str] = []

    def starved(path: Path, how: Callable[[], object]) -> object:
        try:
            return descriptors.opened(path, how)
        finally:
            waited.append(path.name)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))

    def wait(_: float) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    monkeypatch.setattr(files, "opened", starved)
    monkeypatch.setattr(descriptors.time, "sleep", wait)
    commit, store = revision(0), fragment(tmp_path / "f")
    with soft_limit(0):
        commit(store)
    assert {"r00000000.safetensors", "head.json.new", "f", "f.begun"} <= set(waited)
    with soft_limit(0):
        loaded = fragment(tmp_path / "f").load()
    assert loaded is not None and loaded.saved.revision == 0


def test_the_wait_has_an_end_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "WAIT_S", 0.0)
    store = fragment(tmp_path)
    revision(0)(store)
    for act in (lambda: revision(1)(store), fragment(tmp_path).load):
        with soft_limit(0), pytest.raises(StoreError, match=r"at most 0 .*ulimit -n") as told:
            act()
        assert not isinstance(told.value, StoreDamaged)
    revision(1)(store)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_for_the_line_to_the_control_plane_it_is_one_more_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    word = Membership(version=1, runs=[])
    tries: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.001)  # as anything that is not made up
        tries.append(request.method)
        if tries.count(request.method) < 3:
            raise OSError(number, "Too many open files")
        return httpx.Response(200, content=word.model_dump_json())

    async def scenario() -> None:
        came = asyncio.Event()

        async def adopt(_: Membership) -> None:
            came.set()

        snapshot = tmp_path / "membership.json"
        async with link_to(answer, adopt, snapshot=snapshot) as link, running(link):
            await asyncio.wait_for(came.wait(), 20)

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [line["event"] for line in logs] == [
        "waiting for the control plane",
        "connected to the control plane",
    ]
    assert "Too many open files" in logs[0]["why"]
