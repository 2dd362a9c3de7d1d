"""When a replica syncs, waits and ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syncline.core.plan import Act, Heard, after_step, of_everybody, reaches_budget


@given(steps=st.integers(0, 5), is_due=st.booleans(), warming=st.booleans())
def test_what_is_due_is_pushed_if_anything_was_done(
    steps: int, is_due: bool, warming: bool
) -> None:
    synced = bool(after_step(steps, is_due, warming, Heard()) & Act.SYNC)
    assert synced == (is_due and steps > 0 and not warming)


@given(steps=st.integers(0, 9), warming=st.booleans())
def test_a_drain_pushes_what_was_done_and_nothing_else(steps: int, warming: bool) -> None:
    act = after_step(steps, False, warming, Heard(drain=True, paused=True))
    assert act & Act.LEAVE
    assert bool(act & Act.SYNC) == (steps > 0 and not warming)
    assert not act & Act.PAUSE, "who leaves does not wait for the run to go on"


def test_a_lost_lease_and_an_end_stand_above_all_else() -> None:
    heard = Heard(drain=True, paused=True, ended=True, lost=True, new_settings=True)
    assert after_step(9, True, False, heard) is Act.STOP
    assert after_step(9, True, False, Heard(drain=True, ended=True)) is Act.END


def test_new_settings_are_taken_between_rounds_only() -> None:
    heard = Heard(new_settings=True)
    assert not after_step(2, False, False, heard) & Act.ADOPT
    assert after_step(4, True, False, heard) == Act.SYNC | Act.ADOPT
    assert after_step(0, False, False, heard) & Act.ADOPT


def test_settings_heard_while_a_round_was_waited_for_count_from_its_merge() -> None:
    assert after_step(1, False, False, Heard(new_settings=True)) == Act.ADOPT


def test_the_last_round_is_foreseen() -> None:
    assert not reaches_budget(100, 20, 0, None)
    assert not reaches_budget(100, 20, 0, 121)
    assert reaches_budget(100, 20, 0, 120)
    assert reaches_budget(100, 20, 40, 140), "as much as the last round brought"


def test_the_others_are_taken_to_do_as_much_or_as_much_as_in_the_last_round() -> None:
    assert of_everybody(10, 4) == 40
    assert of_everybody(10, 4, of_round=325, own_of_round=25) == 130, "it is the slow one"
    assert of_everybody(10, 4, of_round=300) == 40, "it was in none"
