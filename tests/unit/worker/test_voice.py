"""What all ranks know alike is said once."""

from __future__ import annotations

from structlog.testing import capture_logs

from syncline.voice import of_waiting, voice
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb


def test_rank_0_speaks_for_all() -> None:
    with capture_logs() as logs:
        for rank in range(3):
            voice(rank).info("run.finished", rank=rank)
            voice(rank).warning("leave.early", rank=rank)
    assert [(log["event"], log["rank"]) for log in logs] == [
        ("run.finished", 0),
        ("leave.early", 0),
    ]


def said(
    revision: int, arrived: str, expected: str, gradient_step: int = 0, **given: int
) -> dict[str, str]:
    state = pb.FragmentState(
        revision=revision,
        gradient_step=gradient_step,
        arrived=arrived.split(),
        expected=expected.split(),
    )
    return of_waiting(state, RunSettings.model_validate(given))


def test_the_first_round_says_how_many_have_pushed() -> None:
    first = said(0, "a", "", expected_replicas=2)
    assert first["why"] == ("the first round waits for expected_replicas 2, and 1 of 2 have pushed")
    assert "deadline" in first["so"] and "min_replicas" not in first["so"]
    assert first["so"].endswith("of those who have joined, when their lease runs out")
    assert "min_replicas 2 at least" in said(0, "a", "", expected_replicas=3, min_replicas=2)["so"]
    never = said(0, "a", "", min_replicas=2)
    assert never["why"].startswith("the first round waits for min_replicas 2")
    assert "deadline" not in never["so"], "below its minimum no round closes"


def test_the_first_round_of_a_run_from_a_checkpoint_says_so_too() -> None:
    """At whatever revision it begins: nobody is expected, since nobody has pushed before."""
    first = said(25, "a", "", expected_replicas=2)
    assert first["why"] == "the first round waits for expected_replicas 2, and 1 of 2 have pushed"
    assert said(25, "a", "a", expected_replicas=2)["why"].startswith("all have pushed")


def test_later_rounds_name_who_is_missing() -> None:
    assert said(1, "a", "a b", expected_replicas=2)["why"] == "b has not pushed yet"
    many = said(3, "b", "h g f e d c b a", min_replicas=2)
    assert many["why"] == "a, c, d, e, f and 2 more have not pushed yet"
    assert many["so"].endswith("with min_replicas 2 at least")
    lost = said(1, "a", "a b")["so"]
    assert lost == (
        "the round closes without them when their lease runs out, or at its deadline "
        "(timeouts.round_deadline)"
    )
    assert "soon after quorum 2 is in" in said(1, "a", "a b c", quorum=2)["so"]
    few = said(1, "a", "a", min_replicas=2)
    assert few == {"why": "1 of min_replicas 2 have pushed", "so": "no round closes with fewer"}
    assert said(0, "a", "")["why"].startswith("all have pushed")


def test_a_later_step_of_the_synchronous_phase_is_no_first_round() -> None:
    """The revision is 0 for as long as that goes on."""
    first, later = (said(0, "a", "a b", step, expected_replicas=2) for step in (0, 1))
    assert first["why"].startswith("the first round waits for")
    assert later["why"] == "b has not pushed yet"


def test_a_round_that_has_closed_since_waits_for_nobody() -> None:
    for revision in (0, 7):
        assert said(revision, "", "", min_replicas=2)["why"].startswith("all have pushed")
