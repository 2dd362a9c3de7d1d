"""Room within a limit: fair between runs, in order within one, for everybody in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto.errors import Overloaded, SynclineError
from syncline_sync.budget import Budget, Room


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_one_run_is_served_in_order_and_within_the_limit(
    asked: list[tuple[int, bool]], limit: int, chance: Any
) -> None:
    async def main() -> None:
        budget = Budget(limit)
        rooms = [(i, budget.ask("run", size), goes) for i, (size, goes) in enumerate(asked)]
        live = [(i, room) for i, room, goes in rooms if not goes]
        for _, room, goes in rooms:
            if goes:
                budget.give_back(room)
        while live:
            granted = [(i, room) for i, room in live if room.granted.done()]
            assert granted, "somebody must be able to go on"
            assert granted == live[: len(granted)], "first come, first served"
            held = sum(room.size for _, room in granted)
            assert budget.used == held
            assert held <= limit or len(granted) == 1
            i, room = chance.choice(granted)
            live.remove((i, room))
            budget.give_back(room)
        assert budget.used == 0

    asyncio.run(main())


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=40),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_no_run_is_passed_by_one_that_holds_more(
    asked: list[tuple[str, int]], limit: int, chance: Any
) -> None:
    async def main() -> None:
        budget = Budget(limit)
        left, rooms, served = list(asked), list[Room](), 0

        def held(run: str) -> int:
            return sum(r.size for r in rooms if r.granted.done() and r.run == run)

        def waiting() -> list[Room]:
            return [r for r in rooms if not r.granted.done()]

        while left or rooms:
            before = waiting()
            had = {run: held(run) for run in "abc"}
            if left and (not rooms or chance.random() < 0.6):
                rooms.append(budget.ask(*left.pop(0)))
                before.append(rooms[-1])
            else:
                granted = [r for r in rooms if r.granted.done()]
                assert granted, "somebody must be able to go on"
                gone = chance.choice(granted)
                rooms.remove(gone)
                had[gone.run] -= gone.size
                budget.give_back(gone)
                served += 1
            entered = [r for r in before if r.granted.done()]
            while entered:  # in the order in which they must have been let in
                first = min(entered, key=lambda r: (had[r.run], r.place))
                passed = [r for r in before if had[r.run] < had[first.run]]
                assert not passed, "whoever holds less comes first"
                assert first is min(
                    (r for r in before if r.run == first.run), key=lambda r: r.place
                )
                before.remove(first)
                entered.remove(first)
                had[first.run] += first.size
            inside = [r for r in rooms if r.granted.done()]
            assert budget.used == sum(r.size for r in inside)
            assert budget.used <= limit or len(inside) == 1
        assert (served, budget.used) == (len(asked), 0)

    asyncio.run(main())


def test_a_run_that_fills_the_room_and_the_line_does_not_keep_another_out() -> None:
    async def main() -> None:
        budget = Budget(4)
        hog = [budget.ask("hog", 1) for _ in range(100)]
        honest = [budget.ask("honest", 1) for _ in range(3)]
        for room, inside in zip(hog, (1, 2, 2, 2), strict=False):
            budget.give_back(room)
            assert sum(r.granted.done() for r in honest) == inside

    asyncio.run(main())


def test_with_halves_a_run_finds_room_though_others_give_none_back() -> None:
    async def main() -> None:
        budget = Budget(16, halves=True)
        for run, has in (("first", 8), ("second", 4), ("third", 2)):
            rooms = [budget.ask(run, 1) for _ in range(100)]
            assert sum(room.granted.done() for room in rooms) == has
        late = [budget.ask("late", 1) for _ in range(2)]
        assert [room.granted.done() for room in late] == [True, False]
        budget.give_back(late[0])
        assert late[1].granted.done(), "and what comes back is for who holds the least"

    asyncio.run(main())


@given(st.lists(st.integers(0, 5), max_size=200), st.integers(1, 70), st.integers(1, 6))
@settings(deadline=None)
def test_with_halves_runs_that_give_none_back_leave_a_part_of_the_room(
    asked: list[int], limit: int, runs: int
) -> None:
    """Whatever the order in which they ask, and however much."""

    async def main() -> None:
        budget = Budget(limit, halves=True)
        for run in [*asked, *(run for run in range(runs) for _ in range(limit))]:
            budget.ask(str(run % runs), 1)
        assert limit - budget.used >= limit // 2**runs

    asyncio.run(main())


def test_with_halves_many_runs_that_give_none_back_leave_nothing_until_one_does() -> None:
    async def main() -> None:
        budget = Budget(16, halves=True)
        hogs = [budget.ask(f"hog-{i}", 1) for i in range(5) for _ in range(100)]
        assert budget.used == 16
        late = budget.ask("late", 1)
        assert not late.granted.done()
        budget.give_back(hogs[0])
        assert late.granted.done(), "before those who have more, though they asked first"

    asyncio.run(main())


def test_too_many_waiters_are_told_to_try_later() -> None:
    async def main() -> None:
        budget = Budget(1, waiters_max=2)
        rooms = [budget.ask("run", 1) for _ in range(3)]
        with pytest.raises(Overloaded) as error:
            budget.ask("other", 1)
        assert isinstance(error.value, SynclineError) and error.value.retry
        budget.give_back(rooms[-1])
        budget.ask("other", 1)

    asyncio.run(main())
