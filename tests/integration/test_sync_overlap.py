"""What comes in, what is summed and what is written at the same time: no push waits for another."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline_proto.codec import Float32
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import lingering
from syncline_sync.core import merge
from syncline_sync.core.fragment import Fragment
from syncline_sync.shard import Shard
from syncline_testing.service import RUN, Service, flat_layout, service
from syncline_testing.slow_disk import SlowDisk

SIZE, FRAGMENTS, LIMIT_S = 10, 2, 20.0
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}, "min_replicas": 2}
)


def vector(value: float) -> Float32:
    return np.full(SIZE, value, np.float32)


class Gate:
    """The first call that comes to it waits there until it is opened; all others pass."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def passed(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(LIMIT_S)


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, LIMIT_S)


async def started(s: Service) -> None:
    await s.members({"a": 1, "b": 1})
    await s.open(flat_layout(SIZE, FRAGMENTS), "a")
    for fragment in range(FRAGMENTS):
        await s.offer(vector(0), "a", fragment=fragment)
        await s.pull(fragment=fragment, revision=0)


async def published(s: Service, off: float = 0.0) -> None:
    """Both fragments' first rounds are over, with both pushes; ``off`` is what a codec may lose."""
    for fragment in range(FRAGMENTS):
        header, values = await s.pull(fragment=fragment, revision=1)
        assert np.allclose(values, vector(-2), rtol=off) and len(header.contributions) == 2
    assert s.shared.budget.used == 0 and not s.faults


def test_pushes_come_in_and_are_folded_while_another_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other fragments; of the same one they come in whole, and wait for their turn."""
    gate, begin = Gate(), merge.begin
    monkeypatch.setattr(lingering, "LINGER_S", 0.0)  # it is folded before another comes

    def held(*args: Any) -> None:
        gate.passed()
        begin(*args)

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            monkeypatch.setattr(merge, "begin", held)
            answer = await s.push(vector(1), "a", base_revision=0)
            assert answer.verdict == pb.VERDICT_ACCEPTED
            await until(gate.reached)
            for replica, value in (("a", 1), ("b", 3)):
                given = {"fragment": 1, "base_revision": 0}
                answer = await s.push(vector(value), replica, **given)
                assert answer.verdict == pb.VERDICT_ACCEPTED
            await s.pull(fragment=1, revision=1)
            second = asyncio.create_task(s.push(vector(3), "b", base_revision=0))
            staging = (await s.residence.run(RUN)).staging
            assert staging is not None
            async with asyncio.timeout(LIMIT_S):
                while not any(push.submitted for push in staging._staged.values()):
                    await asyncio.sleep(0.005)
            assert not second.done()
            gate.opened.set()
            assert (await second).verdict == pb.VERDICT_ACCEPTED
            await published(s)

    try:
        asyncio.run(scenario())
    finally:
        gate.opened.set()


def test_pushes_come_in_and_are_folded_while_another_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a codec that the pool decodes: what is light is taken in at once, and holds up nobody."""
    gate, take = Gate(), Shard.take

    def held(shard: Shard, chunks: Any) -> None:
        gate.passed()
        take(shard, chunks)

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            monkeypatch.setattr(Shard, "take", held)
            given = {"codec": pb.CODEC_INT4, "base_revision": 0}
            first = asyncio.create_task(s.push(vector(1), "a", **given))
            await until(gate.reached)
            pushes = (("b", 0, 3), ("a", 1, 1), ("b", 1, 3))
            for replica, fragment, value in pushes:
                answer = await s.push(vector(value), replica, fragment=fragment, **given)
                assert answer.verdict == pb.VERDICT_ACCEPTED
            assert not first.done()
            gate.opened.set()
            assert (await first).verdict == pb.VERDICT_ACCEPTED
            await published(s, off=5e-2)

    try:
        asyncio.run(scenario())
    finally:
        gate.opened.set()


def test_a_fragment_is_told_what_publishing_a_round_took_for_the_grace_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a slow disk takes of what overlap hides is not spent on waiting for anybody."""
    told, tell = dict[int, list[float]](), Fragment.published

    def heard(core: Fragment, seconds: float) -> None:
        told.setdefault(core.saved.revision, []).append(seconds)
        tell(core, seconds)

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            monkeypatch.setattr(Fragment, "published", heard)
            with SlowDisk(monkeypatch, "00000/r00000001") as disk:
                for replica, value in (("a", 1), ("b", 3)):
                    await s.push(vector(value), replica, base_revision=0)
                await disk.until(lambda disk: len(disk.at_once) == 1)
                since_s = time.monotonic()
                for replica, value in (("a", 1), ("b", 3)):
                    await s.push(vector(value), replica, fragment=1, base_revision=0)
                await s.pull(fragment=1, revision=1)
                assert len(told[1]) == 1, "of the other fragment"
                took_s = time.monotonic() - since_s
            await published(s)
            assert len(told[1]) == 2 and told[1][1] >= took_s

    asyncio.run(scenario())
