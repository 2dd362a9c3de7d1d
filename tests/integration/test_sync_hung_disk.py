"""A disk that answers no more: who reads there holds up no push, and nobody the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs

import grpc
import numpy as np
import pytest

from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync import process, residence
from syncline_sync.disk import DiskHangs
from syncline_sync.settings import SyncSettings
from syncline_testing.cluster import free_ports
from syncline_testing.service import RUN, Service, service
from syncline_testing.sync_process import LAYOUT, RULES, SIZE, control_plane, known_run

ONES = np.ones(SIZE, np.float32)
OTHERS = RULES.model_copy(update={"min_replicas": 1})


@contextmanager
def hung(path: Path, mode: int) -> Iterator[None]:
    """Who opens this file waits for its other end, which comes with the end of the block."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        os.close(os.open(path, mode | os.O_NONBLOCK))


async def until_in(function: str) -> None:
    """Until a thread is at work in a function of this name, and stays there."""

    def are_in() -> set[int]:
        stacks = {t: traceback.extract_stack(f) for t, f in sys._current_frames().items()}
        return {t for t, stack in stacks.items() if any(one.name == function for one in stack)}

    before = are_in()
    while not (before & (now := are_in())):
        before = now
        await asyncio.sleep(0.05)


def settings_of(data: Path, control: int = 9) -> SyncSettings:
    url, (port, health, metrics) = f"http://127.0.0.1:{control}", free_ports(3)
    return SyncSettings(data=data, control=url, port=port, health_port=health, metrics_port=metrics)


@asynccontextmanager
async def served(data: Path, control: int = 9) -> AsyncIterator[Any]:
    """What calls a whole service; SIGTERM ends that, and is found to be right to."""
    serving = asyncio.create_task(process.serve(settings := settings_of(data, control)))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{settings.port}") as channel:
        await channel.channel_ready()
        yield sync_pb2_grpc.SyncServiceStub(channel)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(DiskHangs, match=r"^The disk of .* nothing that was published is lost"):
            await serving


async def two_revisions(s: Service) -> None:
    await s.members({"a": 1, "b": 1})
    await s.open(LAYOUT, "a")
    await s.offer(ONES, "a")
    for replica in ("a", "b"):
        await s.push(ONES, replica, base_revision=0)
    await s.pull(revision=1)


async def left_behind(data: Path) -> None:
    """A run that has two revisions, and the word of a control plane that is away."""
    async with service(data, RULES) as s:
        await two_revisions(s)
    known_run(data, OTHERS)


@pytest.fixture(autouse=True)
def _ends_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And the store's lock, which the process keeps to its last breath, is let go of here."""
    for module in (process, residence):
        monkeypatch.setattr(module, "STOP_S", 0.3)
    locks: list[IO[bytes]] = []
    take_up = process._taken_up

    def noted(settings: SyncSettings) -> IO[bytes]:
        locks.append(take_up(settings))
        return locks[-1]

    monkeypatch.setattr(process, "_taken_up", noted)
    yield
    for lock in locks:
        lock.close()


@pytest.mark.parametrize("name", ["membership.json", f"runs/{RUN}/run.json"])
def test_what_the_control_plane_has_said_is_being_kept(tmp_path: Path, name: str) -> None:
    """Its call is taken back before the thread is; and it is told why the service ends."""
    told: list[bytes] = []

    async def scenario() -> None:
        await left_behind(tmp_path)
        (port,) = free_ports(1)
        async with served(tmp_path, port):
            stack.enter_context(hung(tmp_path / f"{name}.new", os.O_RDONLY))
            asked = stack.enter_context(control_plane(port))
            await until_in("replace_file")
        told.extend(asked["DELETE /v1/sync-services/sync-0"])

    with contextlib.ExitStack() as stack:
        asyncio.run(scenario())
    (query,) = (parse_qs(one.decode()) for one in told)
    assert query["why"][0].startswith(f"The disk of {tmp_path} has not answered for 0.3 s."), query


def test_an_older_revision_is_being_read(tmp_path: Path) -> None:
    """By a pull that has been cut."""

    async def scenario() -> None:
        await left_behind(tmp_path)
        async with served(tmp_path) as stub:
            (older,) = tmp_path.rglob("r00000000*")
            stack.enter_context(hung(older, os.O_WRONLY))
            pull = stub.Pull(pb.PullRequest(run=RUN, revision=0))
            await pull.read()
            await until_in("hold")

    with contextlib.ExitStack() as stack:
        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "function"), [("membership.json", "read_bytes"), ("r00000001*", "opened")]
)
def test_what_is_there_at_the_start_is_being_read(tmp_path: Path, name: str, function: str) -> None:
    async def scenario() -> None:
        await left_behind(tmp_path)
        (path,) = tmp_path.rglob(name)
        stack.enter_context(hung(path, os.O_RDWR))
        serving = asyncio.create_task(process.serve(settings_of(tmp_path)))
        await until_in(function)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(DiskHangs, match=r"^The disk of .* nothing that was published is lost"):
            await serving

    with contextlib.ExitStack() as stack:
        asyncio.run(scenario())


def test_pulls_of_an_older_revision_hold_up_no_push(tmp_path: Path) -> None:
    """As many as there are threads for arithmetic."""

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await two_revisions(s)
            (older,) = tmp_path.rglob("r00000000*")
            with hung(older, os.O_WRONLY):
                pulls = [s.stub.Pull(pb.PullRequest(run=RUN, revision=0)) for _ in range(2)]
                for pull in pulls:
                    await pull.read()
                await until_in("read")
                answer = await s.push(ONES, "a", base_revision=1)
                assert answer.verdict == pb.VERDICT_ACCEPTED
                for pull in pulls:
                    pull.cancel()

    asyncio.run(scenario())
