"""Where a run stands is told again by a service that starts: nobody may have heard it before.

A change of the whole run is told once, however many fragments it has.
And, where the membership asks, that nothing is open of lives that are gone: not before it is told.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from syncline_proto.ranges import RANGES_MAX
from syncline_proto.reports import EventIn, RoundReport, Settled
from syncline_proto.settings import RunSettings
from syncline_proto.stretches import Stretch
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.refusals import KEPT_RANGES_MAX
from syncline_testing.service import Service, flat_layout, service

SIZE = 10
ALONE = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


def rounds(s: Service) -> list[RoundReport]:
    """The reports of rounds, in order, without how long they took."""
    told = [what for what in s.reports if isinstance(what, RoundReport)]
    return [one.model_copy(update={"seconds": 0.0}) for one in told]


def test_a_service_that_starts_tells_what_it_may_not_have_told_and_where_each_run_stands(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(SIZE), "a")
            zeros = np.zeros(SIZE, np.float32)
            await s.offer(zeros, "a")
            await s.push(zeros, "a", base_revision=0, tokens=7)
            while len(rounds(s)) < 2:
                await asyncio.sleep(0.01)
            before = rounds(s)
        async with service(tmp_path, ALONE) as again:
            await again.members({"a": 1})
            *retold, stands = rounds(again)
            assert retold == before, "none of it has been answered"
            assert (stands.revision, stands.committed_tokens, stands.kind) == (1, 7, "parameters")

    asyncio.run(scenario())


def test_a_fragment_has_settled_once_what_is_open_of_the_gone_has_been_told(tmp_path: Path) -> None:
    """However long that takes; nobody says so who is not asked, or said it of this version."""

    async def scenario() -> None:
        settings = ALONE.model_copy(update={"min_replicas": 2})
        async with service(tmp_path, settings) as s:
            await s.members({"a": 1, "b": 1})
            await s.open(flat_layout(SIZE), "a")
            zeros = np.zeros(SIZE, np.float32)
            await s.offer(zeros, "a")
            data = [pb.DataRange(epoch=0, start=0, stop=4)]
            await s.push(zeros, "a", base_revision=0, data=data)
            told = len(s.reports)
            await s.members({"b": 1, "c": 1})
            await s.members({"b": 1, "c": 1}, settling=2)
            await s.push(np.zeros(SIZE, np.float32), "b", base_revision=0)
            while len(s.reports) < told + 2:
                await asyncio.sleep(0.01)
            round_, word = s.reports[told:]
            assert isinstance(round_, RoundReport) and round_.revision == 1
            assert word == Settled(fragment=0, membership=3)
            await s.members({"b": 1}, settling=2)
            await s.members({"b": 1}, settling=5)
            await s.push(zeros, "b", base_revision=1)  # in turn: all before it is adopted by then
            assert s.reports[told + 2 :] == [Settled(fragment=0, membership=5)]
            s.host.tell_anew(s.run)  # some of it was dropped on its way
            await s.push(zeros, "b", base_revision=1)
            stands, word = s.reports[told + 3 :]
            assert isinstance(stands, RoundReport) and stands.data is not None
            assert (stands.revision, stands.data.trained) == (1, [Stretch(0, 0, 4)])
            assert word == Settled(fragment=0, membership=5)

    asyncio.run(scenario())


def test_more_epochs_than_a_fragment_keeps_ranges_are_stored_and_told_as_one_stretch(
    tmp_path: Path,
) -> None:
    """By pushes as a replica sends them, and by what a service finds that starts."""
    pushes = KEPT_RANGES_MAX // RANGES_MAX + 2

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(SIZE), "a")
            zeros = np.zeros(SIZE, np.float32)
            await s.offer(zeros, "a")
            for at in range(pushes):
                epochs = range(at * RANGES_MAX, (at + 1) * RANGES_MAX)
                data = [pb.DataRange(epoch=epoch, start=0, stop=3) for epoch in epochs]
                await s.push(zeros, "a", base_revision=at, data=data)
        async with service(tmp_path, ALONE) as again:
            await again.members({"a": 1})
            stands = rounds(again)[-1]
            assert stands.data is not None and stands.revision == pushes
            assert stands.data.trained == [Stretch(0, 0, 3, pushes * RANGES_MAX)]

    asyncio.run(scenario())


def test_a_change_of_the_run_is_told_once_for_all_fragments_whenever_they_take_it_up(
    tmp_path: Path,
) -> None:
    many = 20

    async def scenario() -> None:
        async with service(tmp_path, ALONE.model_copy(update={"min_replicas": 2})) as s:
            await s.members({"a": 1, "b": 1})
            await s.open(flat_layout(SIZE, many), "a")
            zeros = np.zeros(SIZE, np.float32)
            for fragment in range(many):
                await s.offer(zeros, "a", fragment=fragment)
            for revision in range(2):
                told = len(s.reports)
                await s.push(zeros, "a", base_revision=revision)  # its round is open meanwhile
                s.settings = s.settings.model_copy(update={"sync_every": 7 + revision})
                await s.members({"a": 1, "b": 1})
                for fragment in range(1, many):
                    for replica in ("a", "b"):
                        await s.push(zeros, replica, fragment=fragment, base_revision=revision)
                await s.push(zeros, "b", base_revision=revision)
                while sum(isinstance(one, RoundReport) for one in s.reports[told:]) < many:
                    await asyncio.sleep(0.01)
                said = [one.message for one in s.reports[told:] if isinstance(one, EventIn)]
                assert said == ["Codec, interval or strategy changed: norms are learnt anew."]

    asyncio.run(scenario())
