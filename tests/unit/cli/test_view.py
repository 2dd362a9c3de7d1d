"""What replicas say is folded into what a screen shows and what a launch ends with."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from syncline.cli import live, up
from syncline.cli.replicas import by_name
from syncline.launch.view import ReplicaNow, ReplicaStage, View, of_export, result
from syncline.train.progress import Ending, JsonListener, Snapshot, Start
from syncline_proto.rest import ReplicaState, ReplicaView, RunState
from syncline_testing.views import NOW, ending, running

START = Start(
    run="tiny",
    replica="replica-0",
    tokens=0,
    parameters=1000,
    tokens_total=1_000_000,
    held_out_loss=5.5,
    bits_per_byte=8.0,
)
PAGE = "http://127.0.0.1:1/"
END = ending(1_000_000)


def told(*, start: Start = START, now: Snapshot = NOW, end: Ending | None = None) -> list[str]:
    """The lines that a replica really writes."""
    out = io.StringIO()
    progress = JsonListener(out)
    progress.start(start)
    progress.update(now)
    progress.close(end)
    return out.getvalue().splitlines()


def view(*ends: Ending | None) -> View:
    replicas = {f"replica-{i}": ReplicaNow(name=f"replica-{i}") for i in range(len(ends))}
    for replica, end in zip(replicas.values(), ends, strict=True):
        replica.hear(told(end=end))
    return View(run="tiny", page="http://127.0.0.1:1/", replicas=replicas)


def test_before_training_is_what_the_first_began_with_and_no_joiner() -> None:
    seen = view(END, replace(END, revision=9, bits_per_byte_start=4.6))
    joiner = io.StringIO()
    JsonListener(joiner).start(replace(START, replica="replica-1", bits_per_byte=4.6))
    for name in ("replica-0", "replica-1"):  # the one comes back, the other was never there before
        seen.replicas[name].hear(joiner.getvalue().splitlines())
    told_last = result(seen, "runs/tiny", 60.0)
    assert told_last is not None and told_last.bits_per_byte_start == 8.0


def test_the_trainers_own_lines_are_understood() -> None:
    replica = ReplicaNow(name="replica-0")
    assert replica.stage == "starting"
    replica.hear(["a library said this", '"and this"', *told(end=END)])
    assert (replica.begun, replica.latest, replica.ending) == (START, NOW, END)
    assert replica.stage == "training"


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "start"}',
        '{"event": "start", "run": "mine", "epoch": 1}',
        '{"event": "end", "reason": "mine"}',
        '{"event": ["progress"]}',
        '{"event": "epoch"}',
        '["event"]',
        "[" * 100_000,
    ],
)
def test_json_of_somebody_else_is_passed_over(line: str) -> None:
    """As a factory of the user's own may print it."""
    replica = ReplicaNow(name="replica-0")
    replica.hear([line[:-1], line, *told(), line])
    assert (replica.begun, replica.latest, replica.ending) == (START, NOW, None)


def test_sums_over_the_replicas() -> None:
    seen = view(None, None)
    assert seen.tokens_per_second == 2000.0
    assert seen.tokens == 400_000  # of the run: each replica counts everybody's
    assert seen.eta_s == pytest.approx(300.0)
    assert seen.exposed_sync_share == pytest.approx(0.1)


def test_a_result_needs_one_replica_at_its_end_or_a_revision() -> None:
    begun = view(None)
    begun.replicas["replica-0"].hear(told(now=replace(NOW, revision=0)))
    assert result(begun, "folder", 1.0) is None
    begun.state = running("tiny", revision=1)
    assert result(begun, "folder", 1.0) is not None
    newer = replace(END, revision=10, bits_per_byte_merged=2.7)
    found = result(view(END, newer, None), "folder", 120.0)
    assert found is not None
    assert found.failed == ["replica-2"]
    assert found.bits_per_byte_end == 2.7
    assert found.tokens_per_second == 10_000.0
    assert found.as_dict()["replicas"]["replica-0"]["held_out_local"] == 2.0


def test_rounds_are_those_that_outer_steps_made() -> None:
    """A synchronous phase ends with an offer, which is a revision and no round."""
    seen = view(None)
    assert (seen.rounds, seen.synchronous_steps) == (3, 0)
    seen.warmup_steps = 16
    assert (seen.rounds, seen.synchronous_steps) == (2, 16)
    seen.replicas["replica-0"].hear(told(now=replace(NOW, revision=0, inner_step=5)))
    assert (seen.rounds, seen.synchronous_steps) == (0, 5)
    ended = view(END)
    ended.warmup_steps = 16
    found = result(ended, "folder", 1.0)
    assert found is not None
    assert (found.revision, found.rounds, found.synchronous_steps) == (9, 8, 16)


def test_the_merged_model_is_that_of_a_replica_that_evaluated_it() -> None:
    newer = replace(END, revision=12, held_out_merged=None, bits_per_byte_merged=None)
    found = result(view(END, newer), "folder", 1.0)
    assert found is not None and found.bits_per_byte_end == 2.8


def test_an_export_tells_the_figures_of_its_own_revision() -> None:
    """Not those of a replica that left before; and its loss, only if somebody looked at it."""
    early = replace(END, reason="drained", revision=4, tokens=400_000)
    made = {"folder": "model", "revision": 9, "committed_tokens": 900_000}
    seen = view(early, None)
    seen.replicas["replica-1"].stage = "kicked"
    ended = result(seen, "folder", 1.0)
    assert ended is not None
    assert (ended.has_ended, ended.failed, ended.kicked) == (False, [], ["replica-1"])
    found = of_export(ended, made, warmup_steps=16)
    assert (found.revision, found.rounds, found.tokens) == (9, 8, 900_000)
    assert (found.held_out_merged, found.bits_per_byte_end) == (None, None)
    assert "no replica evaluated revision 9" in drawn(live.ending(found, PAGE))
    assert "kicked" in drawn(live.ending(found, PAGE))
    last = result(view(early, END), "folder", 1.0)
    assert last is not None and last.has_ended
    found = of_export(last, made, warmup_steps=0)
    assert (found.held_out_merged, found.bits_per_byte_end) == (1.9, 2.8)
    assert "no replica evaluated" not in drawn(live.ending(found, PAGE))


@pytest.mark.parametrize("stage", ["ended", "kicked", "failed"])
def test_only_a_launch_that_everybody_was_asked_to_leave_ends_well(
    stage: ReplicaStage, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = view(replace(END, reason="drained", tokens=87_654), None)
    seen.replicas["replica-1"].stage = stage
    found = result(seen, "folder", 1.0)
    assert found is not None and not found.has_ended
    for goes_on, again in ((True, "goes on"), (False, "starts anew")):
        assert up.left_early(found, goes_on=goes_on) == (0 if stage == "ended" else 60)
        said = f"No replica is left at 8 % of the token budget; the same command {again}.\n"
        assert capsys.readouterr().err.removeprefix("error: ") == said
    endless = replace(found, token_budget=None)
    up.left_early(endless, goes_on=True)
    assert "left after 87.7 k tokens;" in capsys.readouterr().err


def test_a_run_that_everybody_failed_has_a_result_where_it_has_a_revision() -> None:
    seen = view(None)
    seen.replicas["replica-0"].stage = "failed"
    found = result(seen, "folder", 1.0)
    assert found is not None
    assert (found.revision, found.failed, found.has_ended) == (3, ["replica-0"], False)
    assert (found.tokens, found.token_budget) == (400_000, 1_000_000)
    assert found.bits_per_byte_start == 8.0
    assert "replica-0" in drawn(live.ending(found, PAGE))


def test_a_paused_run_says_how_it_goes_on_and_counts_nothing_down() -> None:
    seen = view(None, None)
    seen.page = "http://127.0.0.1:65535/"
    assert "5:00 left" in drawn(live.picture(seen)) and "left 5:00" in live.line(seen)
    seen.state = running("tiny").model_copy(update={"state": RunState.PAUSED})
    for shown in (drawn(live.picture(seen), 80), live.line(seen)):
        assert "paused; `syncline runs resume tiny` goes on" in shown
        assert "--control http://127.0.0.1:65535)" in shown
        assert "0 tokens/s" in shown and "left" not in shown
    assert {seen.phase(replica) for replica in seen.replicas.values()} == {"paused"}
    assert seen.eta_s is None


def test_while_nothing_counts_nothing_is_counted_down() -> None:
    seen = view(None, None)
    for replica in seen.replicas.values():
        replica.hear(told(now=replace(NOW, eta_s=None)))
    assert seen.eta_s is None
    assert "left –" in live.line(seen)


def test_a_line_of_a_log_says_whose_loss_it_shows_in_the_words_of_the_table() -> None:
    seen = view(None, None)
    seen.replicas["replica-1"].hear(
        told(now=replace(NOW, held_out_loss=None, held_out_bits_per_byte=None))
    )
    shown, table = live.line(seen), drawn(live.picture(seen))
    for word in ("loss", "training bits/byte", "held-out"):
        assert word in table and shown.count(f" {word} ") == 2
    assert "replica-0: loss" in shown and "replica-1: loss" in shown
    assert "held-out 3.750 bits/byte" in shown and "held-out –" in shown


def test_losses_are_nats_a_token_where_nobody_counted_the_bytes() -> None:
    seen = View(run="tiny", page=PAGE, replicas={"replica-0": ReplicaNow(name="replica-0")})
    (replica,) = seen.replicas.values()
    start = replace(START, bits_per_byte=None)
    now = replace(NOW, bits_per_byte=math.nan, held_out_bits_per_byte=None)
    replica.hear(told(start=start, now=now))
    for shown in (live.line(seen), drawn(live.picture(seen))):
        assert "2.600 nats/token" in shown and "2.500" in shown and "bits/byte" not in shown
    end = replace(END, bits_per_byte_local=None, bits_per_byte_merged=None)
    replica.hear(told(start=start, now=now, end=end))
    found = result(seen, "folder", 1.0)
    assert found is not None
    shown = drawn(live.ending(found, PAGE))
    assert row(shown, "before") == f"{START.held_out_loss:.3f} nats/token"
    assert "2.0000" in shown and "bits/byte" not in shown


def test_a_held_out_loss_from_before_training_is_marked() -> None:
    seen = view(None, None)
    first = replace(NOW, held_out_loss=START.held_out_loss, held_out_bits_per_byte=8.0)
    seen.replicas["replica-0"].hear(told(now=first))
    for shown in (live.line(seen), drawn(live.picture(seen))):
        assert "8.000 bits/byte (start)" in shown and "3.750 bits/byte" in shown
        assert shown.count("(start)") == 1
    seen.replicas["replica-0"].hear(told())
    assert "(start)" not in live.line(seen)


def test_who_has_come_to_the_end_is_not_shown_as_training() -> None:
    seen = view(END, None)
    first, second = seen.replicas.values()
    assert (seen.phase(first), seen.phase(second)) == ("done", "training")
    assert seen.tokens_per_second == 1000.0
    ended = {"state": RunState.FINISHED, "ended_at": 1.0}
    seen.state = running("tiny").model_copy(update=ended)
    shown = drawn(live.picture(seen))
    assert seen.phase(second) == "done"
    assert "training" not in shown.replace("training bits/byte", "")
    assert "0 alive" in shown and "left" not in shown


def test_the_last_picture_shows_what_the_summary_says() -> None:
    seen = view(END, END)
    for replica in seen.replicas.values():
        replica.stage = "ended"
    shown = drawn(live.picture(seen))
    assert "1 M of 1 M tokens" in shown and "3.750" not in shown
    assert shown.count("2.900 bits/byte") == 2
    assert shown.count("2.0 %") == 3, "each replica's, and all of theirs"


def test_the_last_words_of_speed_are_of_what_was_trained() -> None:
    seen = view(None, None)
    assert "  2 k tokens/s  " in live.line(seen)
    seen.state = running("tiny").model_copy(update={"state": RunState.PAUSED})
    assert "  0 tokens/s  " in live.line(seen), "it may go on"
    seen.state = running("tiny").model_copy(update={"state": RunState.STOPPED, "ended_at": 1.0})
    for shown in (live.line(seen), drawn(live.picture(seen))):
        assert "2 k tokens/s while it trained" in shown
    nothing = replace(END, own_tokens=0, tokens_per_second=0.0)
    seen = view(nothing)
    assert "nothing was trained" in live.line(seen)
    found = result(seen, "folder", 120.0)
    assert found is not None
    assert row(drawn(live.ending(found, PAGE)), "speed") == "nothing was trained"
    found = replace(found, tokens_per_second=2000.0)
    assert row(drawn(live.ending(found, PAGE)), "speed") == "2 k tokens/s while it trained"


def drawn(what: RenderableType, width: int = 160) -> str:
    """What a terminal of this width would show."""
    out = io.StringIO()
    Console(file=out, width=width).print(what)
    return out.getvalue()


def screen(seen: View, width: int) -> list[str]:
    return [line.rstrip() for line in drawn(live.picture(seen), width).splitlines()]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_live_screen_fits_the_window(width: int) -> None:
    name = "gpu-box-in-the-third-rack-0"
    seen = view()
    seen.page, seen.warmup_steps = "http://127.0.0.1:65535/", 1000
    seen.state = running("tiny", replicas_alive=100, replicas_taking_part=100, exclusions=10_000)
    seen.replicas[name] = ReplicaNow(name=name)
    seen.replicas[name].hear(told(now=replace(NOW, revision=100_000, tokens_per_second=123_456.0)))
    seen.replicas["replica-1"] = ReplicaNow(name="replica-1")
    lines = screen(seen, width)
    more = {80: 3, 100: 2}.get(width, 0)  # headings of two words; what is not shown
    assert len(lines) == len(screen(seen, 300)) + more, "nothing else wraps"
    assert "…" not in "".join(lines)
    assert any(line.startswith(f"{name}  ") for line in lines)
    assert any("3.750 bits/byte" in line for line in lines)


def test_a_held_out_loss_without_bytes_is_in_nats() -> None:
    assert NOW.held_out == "3.750 bits/byte"
    assert replace(NOW, held_out_bits_per_byte=float("nan")).held_out == "2.600 nats/token"
    assert replace(NOW, held_out_loss=None, held_out_bits_per_byte=None).held_out is None


def test_a_number_that_is_not_finite_does_not_stop_the_screen() -> None:
    seen = view(None)
    seen.replicas["replica-0"].hear(
        told(now=replace(NOW, loss=float("nan"), grad_norm=float("inf")))
    )
    assert "replica-0" in drawn(live.picture(seen))
    assert "revision 3" in live.line(seen)


def test_the_end_shows_every_replica_and_the_merged_model() -> None:
    found = result(view(END, None), "folder", 120.0)
    assert found is not None
    shown = drawn(live.ending(found, PAGE))
    for word in ("replica-0", "replica-1", "failed", "merged", "1.9000", "2.800", "folder"):
        assert word in shown
    assert "seconds of merged" in shown
    assert row(shown, "page") == f"{PAGE} (gone with the services; --keep keeps them)"
    assert row(shown, "model", last=True) == "none: no round was committed"
    kept = drawn(live.ending(replace(found, page=PAGE), PAGE))
    assert row(kept, "page") == PAGE


def test_the_end_shows_each_replica_s_own_held_out_loss_and_where_the_export_is() -> None:
    other = replace(END, held_out_local=2.1234, bits_per_byte_local=3.0625)
    found = result(view(END, other), "folder", 120.0)
    assert found is not None
    shown = drawn(live.ending(replace(found, export="/runs/tiny/export"), PAGE))
    assert row(shown, "replica-0").split()[:2] == ["2.0000", "2.900"]
    assert row(shown, "replica-1").split()[:2] == ["2.1234", "3.062"]
    assert row(shown, "merged").split()[:2] == ["1.9000", "2.800"]
    assert row(shown, "model", last=True) == "/runs/tiny/export"


def row(shown: str, name: str, *, last: bool = False) -> str:
    """What stands behind a name at the beginning of a line."""
    found = [line for line in shown.splitlines() if line.startswith(f"{name} ")]
    return found[-1 if last else 0].removeprefix(name).strip()


def test_replicas_stand_by_their_names_and_numbers_count() -> None:
    names = ["replica-10", "b", "replica-2", "a", "replica-1b", "replica-1", "10", "9"]
    views = [ReplicaView(replica=one, incarnation=1, state=ReplicaState.LEFT) for one in names]
    in_order = ["9", "10", "a", "b", "replica-1", "replica-1b", "replica-2", "replica-10"]
    assert [one.replica for one in by_name(views)] == in_order
