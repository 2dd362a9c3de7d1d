"""Every round that is on the disk is heard of, whatever is killed when, and none counts twice."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto.reports import RoundReport
from syncline_sync import report_queue
from syncline_sync.core import untold
from syncline_sync.core.untold import Untold
from syncline_sync.report_queue import ReportQueue

FRAGMENTS = 2

Answer = Literal["taken", "lost"]
"""Of a batch: the control plane has it; and in the second case its answer never came."""


class Service:
    """A service's life: its fragments' memory, and what it has to tell; a kill ends both."""

    def __init__(self, disk: list[tuple[str, ...]]) -> None:
        self.queue = ReportQueue()
        self.fragments = [Untold() for _ in range(FRAGMENTS)]
        for fragment, reports in enumerate(disk):
            for text in reports:
                self.tell(fragment, text)

    def tell(self, fragment: int, text: str) -> None:
        ticket = self.queue.put("run", RoundReport.model_validate_json(text))
        self.fragments[fragment].told(ticket, text)

    async def send(self, heard: set[tuple[int, int]], answer: Answer) -> None:
        if not self.queue:
            return
        run, batch = await self.queue.batch()
        heard |= {(one.fragment, one.revision) for one in batch if isinstance(one, RoundReport)}
        if answer == "taken":
            self.queue.settle()
        else:
            self.queue.put_back(run, batch)


def report(fragment: int, revision: int) -> str:
    return RoundReport(
        fragment=fragment,
        fragment_name="f",
        kind="pseudo-gradient",
        revision=revision,
        committed_at=float(revision),
        seconds=0.0,
    ).model_dump_json()


STEPS = st.one_of(
    st.tuples(st.just("round"), st.integers(0, FRAGMENTS - 1)),
    st.tuples(st.just("kill after a commit"), st.integers(0, FRAGMENTS - 1)),
    st.tuples(st.just("kill before a commit"), st.integers(0, FRAGMENTS - 1)),
    st.tuples(st.just("taken"), st.just(0)),
    st.tuples(st.just("lost"), st.just(0)),
)


@given(st.lists(STEPS, max_size=40))
@settings(deadline=None)
def test_what_is_on_the_disk_is_told_whatever_is_killed_when(steps: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        disk: list[tuple[str, ...]] = [()] * FRAGMENTS
        stands, heard = [0] * FRAGMENTS, set[tuple[int, int]]()
        service = Service(disk)
        for step, fragment in steps:
            if step in ("taken", "lost"):
                await service.send(heard, "taken" if step == "taken" else "lost")
                continue
            text = report(fragment, stands[fragment] + 1)
            kept = service.fragments[fragment].kept(service.queue.settled, text)
            if step != "kill before a commit":
                disk[fragment], stands[fragment] = kept, stands[fragment] + 1
            if step == "round":
                service.tell(fragment, text)
            else:
                service = Service(disk)
        service = Service(disk)
        await service.send(heard, "taken")
        assert heard == {(f, r) for f in range(FRAGMENTS) for r in range(1, stands[f] + 1)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_queue, "FLUSH_S", 0.0)
        asyncio.run(scenario())


def test_half_of_a_batch_that_waits_for_another_time_is_not_settled_with_the_other_half() -> None:
    async def scenario() -> None:
        service = Service([()] * FRAGMENTS)
        for revision in range(1, 5):
            service.tell(0, report(0, revision))
        run, batch = await service.queue.batch()
        service.queue.put_back(run, batch[2:])  # too large for one request
        service.queue.settle()
        text = report(0, 5)
        kept = service.fragments[0].kept(service.queue.settled, text)
        assert kept == (report(0, 3), report(0, 4), text)
        assert (await service.queue.batch())[1] == batch[2:]
        service.queue.settle()
        assert service.fragments[0].kept(service.queue.settled, text) == (text,)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_queue, "FLUSH_S", 0.0)
        asyncio.run(scenario())


def test_what_is_settled_is_kept_no_longer_and_the_rest_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(untold, "UNTOLD_CHARACTERS_MAX", 5)
    one = Untold()
    for ticket, text in enumerate(("aa", "bb", "cc")):
        one.told(ticket, text)
    assert one.kept(0, "a long one") == ("bb", "cc", "a long one"), "its own round's in any case"
    assert one.kept(2, "d") == ("cc", "d")
    one.told(3, "longer than all")
    assert one.kept(2, "e") == ("e",)
