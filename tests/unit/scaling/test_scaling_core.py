"""How many replicas a workload is to have: what a run wants, less who is there from elsewhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syncline.scaling.core import WAIT_S_MAX, Change, Demand, Observed, change_of, told, wait_s

OWN = frozenset({"worker-0", "worker-1", "worker-2", "worker-3"})


def observed(replicas: int, *, starts_again: bool = True) -> Observed:
    return Observed(
        replicas=replicas,
        is_own=OWN.__contains__,
        starts_again=starts_again,
        who_leaves="The highest numbers leave.",
    )


def test_nobody_said_nothing_is_done() -> None:
    assert change_of(Demand(run="r", wanted=None, alive=["worker-0"]), observed(3)) is None


def test_what_is_wanted_is_made_so_once() -> None:
    demand = Demand(run="r", wanted=4, alive=["worker-0", "worker-1"])
    expected = Change(run="r", before=2, after=4, why="r should have 4")
    assert change_of(demand, observed(2)) == expected
    assert change_of(demand, observed(4)) is None, "they are on their way"


def test_replicas_from_elsewhere_count_and_stay() -> None:
    demand = Demand(run="r", wanted=3, alive=["worker-0", "guest", "other"])
    found = change_of(demand, observed(2))
    assert found is not None and found.after == 1
    assert told(found, "statefulset/worker", observed(2)) == (
        "statefulset/worker goes from 2 to 1 replica: r should have 3, and 2 are elsewhere. "
        "The highest numbers leave."
    )
    crowd = Demand(run="r", wanted=1, alive=["guest", "other", "third"])
    assert change_of(crowd, observed(0)) is None, "there is nobody of its own to end"


def test_more_replicas_are_told_without_who_leaves() -> None:
    found = change_of(Demand(run="r", wanted=2), observed(0))
    said = "w goes from 0 to 2 replicas: r should have 2."
    assert found and told(found, "w", observed(0)) == said


def test_what_would_start_again_for_ever_is_ended_with_its_run() -> None:
    demand = Demand(run="r", wanted=3, has_ended=True)
    found = change_of(demand, observed(3))
    assert found and (found.after, found.why) == (0, "r has ended")
    assert change_of(demand, observed(0)) is None
    assert change_of(demand, observed(3, starts_again=False)) is None, "its logs are kept"


@given(
    wanted=st.integers(1, 8),
    before=st.integers(0, 4),
    guests=st.sets(st.sampled_from(["a", "b", "c"])),
)
def test_a_step_leads_where_no_other_is_needed(wanted: int, before: int, guests: set[str]) -> None:
    demand = Demand(run="r", wanted=wanted, alive=sorted(OWN)[:before] + sorted(guests))
    found = change_of(demand, observed(before))
    after = before if found is None else found.after
    assert change_of(demand, observed(after)) is None
    assert after + len(guests) >= wanted, "never too few"
    assert after == 0 or after + len(guests) == wanted, "too many only where they are not its own"


def test_who_fails_looks_again_later_and_later_and_never_too_late() -> None:
    waits = [wait_s(5.0, failures) for failures in range(8)]
    assert waits[:3] == [5.0, 10.0, 20.0]
    assert waits == sorted(waits) and waits[-1] == WAIT_S_MAX
    assert wait_s(300.0, 4) == 300.0, "who looks seldom does not look more often"
