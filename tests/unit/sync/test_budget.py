"""Room within a limit: fair between runs and replicas, in order, for everybody in the end."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto.errors import Overloaded, SynclineError
from syncline_sync.budget import Budget, Reservation
from syncline_testing.calls import calls_counted


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_one_replica_is_served_in_order_and_within_the_limit(
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
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 9)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_nobody_is_passed_by_a_run_or_a_replica_of_its_that_holds_more(
    asked: list[tuple[str, str, int]], limit: int, chance: Any
) -> None:
    async def main() -> None:
        budget = Budget(limit)
        left, rooms, served = list(asked), list[Reservation](), 0

        def waiting() -> list[Reservation]:
            return [r for r in rooms if not r.granted.done()]

        while left or rooms:
            before = waiting()
            inside = [r for r in rooms if r.granted.done()]
            if left and (not rooms or chance.random() < 0.6):
                run, replica, size = left.pop(0)
                rooms.append(budget.ask(run, size, replica=replica))
                before.append(rooms[-1])
            else:
                assert inside, "somebody must be able to go on"
                gone = chance.choice(inside)
                rooms.remove(gone)
                inside.remove(gone)
                budget.give_back(gone)
                served += 1

            def rank(one: Reservation, inside: list[Reservation] = inside) -> tuple[int, int, int]:
                of_run = [r for r in inside if r.run == one.run]
                of_replica = [r for r in of_run if r.replica == one.replica]
                return sum(r.size for r in of_run), sum(r.size for r in of_replica), one.place

            def is_in_share(one: Reservation, inside: list[Reservation] = inside) -> bool:
                held = sum(r.size for r in inside if r.whose == one.whose)
                return not held or sum(r.size for r in inside) + one.size + held <= limit

            entered = [r for r in before if r.granted.done()]
            while entered:  # in the order in which they must have been let in
                first = min(entered, key=rank)
                places = sorted(before, key=lambda one: one.place, reverse=True)
                heads = {one.whose: one for one in places}.values()  # of each replica's own line
                candidates = filter(is_in_share, heads)
                assert first is min(candidates, key=rank), "whoever holds less comes first"
                before.remove(first)
                entered.remove(first)
                inside.append(first)
            inside = [r for r in rooms if r.granted.done()]
            assert budget.used == sum(r.size for r in inside)
            assert budget.used <= limit or len(inside) == 1
        assert (served, budget.used) == (len(asked), 0)

    asyncio.run(main())


def test_a_run_that_fills_the_room_and_the_line_does_not_keep_another_out() -> None:
    async def main() -> None:
        budget = Budget(4)
        hog = [budget.ask("hog", 1, replica=str(i)) for i in range(100)]
        honest = [budget.ask("honest", 1, replica=str(i)) for i in range(3)]
        for room, inside in zip(hog, (1, 2, 2, 2), strict=False):
            budget.give_back(room)
            assert sum(r.granted.done() for r in honest) == inside

    asyncio.run(main())


def test_a_run_finds_room_though_others_give_none_back() -> None:
    async def main() -> None:
        budget = Budget(16)
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
def test_runs_that_give_none_back_leave_a_part_of_the_room(
    asked: list[int], limit: int, runs: int
) -> None:
    """Whatever the order in which they ask, and however much."""

    async def main() -> None:
        budget = Budget(limit)
        for run in [*asked, *(run for run in range(runs) for _ in range(limit))]:
            budget.ask(str(run % runs), 1)
        assert limit - budget.used >= limit // 2**runs

    asyncio.run(main())


def test_many_runs_that_give_none_back_leave_nothing_until_one_does() -> None:
    async def main() -> None:
        budget = Budget(16)
        hogs = [budget.ask(f"hog-{i}", 1) for i in range(5) for _ in range(100)]
        assert budget.used == 16
        late = budget.ask("late", 1)
        assert not late.granted.done()
        budget.give_back(hogs[0])
        assert late.granted.done(), "before those who have more, though they asked first"

    asyncio.run(main())


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=10, max_size=60),
    st.integers(27, 100),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_replicas_that_give_none_back_leave_the_others_room(
    asked: list[tuple[int, int]], limit: int, replicas: int
) -> None:
    """Of several sizes: each of them leaves half of what was free, less the largest."""

    async def main() -> None:
        budget = Budget(limit)
        for who, size in asked:
            budget.ask("run", size, replica=str(who % replicas))
        free = float(limit)
        for _ in range(replicas):
            free = (free - 9) / 2
        assert limit - budget.used >= free
        if replicas == 1:
            assert budget.ask("run", 9, replica="late").granted.done(), "three of the largest"

    asyncio.run(main())


def test_who_waits_for_its_own_share_is_in_nobodys_way() -> None:
    """Of a run that holds less, too: it is next, but for its share."""

    async def main() -> None:
        budget = Budget(8)
        hog = [budget.ask("first", 2, replica="hog") for _ in range(9)]
        assert [room.granted.done() for room in hog[:3]] == [True, True, False]
        honest = budget.ask("second", 3, replica="a")
        other = budget.ask("second", 1, replica="b")
        assert honest.granted.done() and other.granted.done()
        for room in (honest, other, hog[0]):
            budget.give_back(room)
        assert hog[2].granted.done()

    asyncio.run(main())


def test_a_replica_alone_has_its_rooms_one_after_another_however_large() -> None:
    async def main() -> None:
        budget = Budget(3)
        rooms = [budget.ask("run", size, replica="a") for size in (3, 9, 2, 2)]
        for at, room in enumerate(rooms):
            assert [r.granted.done() for r in rooms[at:]] == [True] + [False] * (3 - at)
            budget.give_back(room)

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


def test_to_ask_where_there_is_no_room_takes_no_longer_the_more_wait() -> None:
    async def calls(waiting: int) -> int:
        budget = Budget(1)
        for number in range(waiting):
            budget.ask("run", 1, replica=str(number))
        with calls_counted() as made:
            budget.ask("run", 1, replica="last")
        return made.count

    assert asyncio.run(calls(500)) == asyncio.run(calls(5))


def test_to_give_back_takes_no_longer_the_more_wait() -> None:
    async def calls(waiting: int) -> int:
        budget = Budget(3)
        # Who holds something and wants more, and who holds nothing; of one replica many, too.
        rooms = [budget.ask("run", 1, replica=str(number)) for number in range(2)]
        for number in range(waiting):
            budget.ask("run", 2, replica=str(number))
            budget.ask("run", 1, replica="many")
        last = budget.ask("run", 1, replica="many")
        with calls_counted() as made:
            budget.give_back(rooms[0])
            budget.give_back(rooms[1])
        budget.give_back(last)
        return made.count

    assert asyncio.run(calls(500)) == asyncio.run(calls(5))


def test_who_holds_room_to_spare_is_told_once_when_somebody_waits() -> None:
    async def main() -> None:
        budget, told = Budget(10), []
        assert budget.when_wanted(lambda: told.append("first"))
        kept = partial(told.append, "kept")
        assert budget.when_wanted(kept)
        budget.forget_wanted(kept)
        held = budget.ask("run", 6)
        assert told == [], "there is room for it"
        waiting = budget.ask("run", 6)
        assert told == ["first"]
        assert not budget.when_wanted(lambda: told.append("late")), "somebody waits already"
        budget.ask("run", 6)
        assert told == ["first"], "once"
        budget.give_back(held)
        assert waiting.granted.done()

    asyncio.run(main())
