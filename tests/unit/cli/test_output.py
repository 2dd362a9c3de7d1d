"""What is printed is what was meant, whatever it holds."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from syncline.cli import output, watch
from syncline.cli.about import exit_code_rows
from syncline.cli.app import run
from syncline_proto.errors import FileMissing, SynclineError, every_kind
from syncline_proto.reports import RoundReport
from syncline_proto.rest import (
    LossPoint,
)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (None, "–"),
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (12_345, "12.3 k"),
        (1_234_567, "1.23 M"),
        (2.5e9, "2.5 G"),
        (999.4, "999"),
        (999.6, "1 k"),
        (999_499, "999 k"),
        (999_600, "1 M"),
        (999_999_999, "1 G"),
        (-999_600, "-1 M"),
    ],
)
def test_counts_have_three_digits(number: float | None, words: str) -> None:
    assert output.count(number) == words


def test_one_run_and_two_runs() -> None:
    assert [output.counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0.4, "0 s"), (59.4, "59 s"), (65, "1:05"), (7385, "2:03:05")],
)
def test_durations_read_like_a_clock(seconds: float | None, words: str) -> None:
    assert output.duration(seconds) == words


def test_names_are_never_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.show([], False, lambda: output.table(("name",), [("a[red]b",)], empty=""))
    output.error(FileMissing("there is no [bold]/tmp/x[/bold]"))
    shown = capsys.readouterr()
    assert "a[red]b" in shown.out
    assert shown.err == "error: there is no [bold]/tmp/x[/bold]\n"


def test_a_sentence_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = f"It is in {'/model[v2]' * 30}."
    output.show({}, False, lambda: said)
    assert capsys.readouterr().out == f"{said}\n"


WIDE = ("name", ">first", "second", ">third")
ROWS = [("a-name-that-is-long", 1, "some words", 3), ("b", 22, "", 333)]


IN_ORDER = [column.lstrip(">") for column in WIDE].index


def drawn(width: int, **options: Any) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(output.table(WIDE, ROWS, empty="", **options))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_no_line_ends_in_blanks() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    console.print(output.table(WIDE, [("a", 1, "words", None), ("b", 2, "", "")], empty=""))
    console.print(output.table(("name", "words"), [("a", "some words"), ("b", "")], empty=""))
    console.print(output.facts([("name", "a"), ("words", "some words")]))
    lines = out.getvalue().splitlines()
    assert lines == [line.rstrip() for line in lines] and len(lines) == 8


def test_a_narrow_window_gets_fewer_columns_and_never_half_a_name() -> None:
    spare = ("first", "third", "second")
    whole = drawn(200, spare=spare)
    assert whole[0].split() == ["name", "first", "second", "third"]
    for width in range(len("a-name-that-is-long"), 200):
        lines = drawn(width, spare=spare)
        assert all(len(line) <= width for line in lines)
        missing = [name for name in spare if name not in lines[0]]
        said = " ".join(lines[3:]).partition(". ")[0]
        assert said == ("Not shown: " + ", ".join(sorted(missing, key=IN_ORDER)) if missing else "")
        assert "a-name-that-is-long" in lines[1] and "…" not in "".join(lines)
    assert drawn(len(max(whole, key=len)), spare=spare) == whole
    assert drawn(38, spare=spare)[0].split() == ["name", "second", "third"]


def test_headings_take_a_line_for_each_word_before_a_column_is_left_out() -> None:
    out = io.StringIO()
    rows = [("a-run", "yes", 12.5)]
    made = output.table(
        ("run", "taking part", ">of budget"), rows, empty="", spare=("taking part",)
    )
    Console(file=out, width=22).print(made)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines == ["       taking      of", "run    part    budget", "a-run  yes       12.5"]


def test_one_column_may_take_several_lines_instead() -> None:
    lines = drawn(42, fold="second")
    assert len(lines) == 4 and "a-name-that-is-long" in lines[1]


def test_json_holds_models_in_any_nesting(capsys: pytest.CaptureFixture[str]) -> None:
    output.show({"a": [LossPoint(tokens=3, loss=1.5)], "b": None}, True, lambda: "unused")
    found = json.loads(capsys.readouterr().out)
    assert found["a"][0]["tokens"] == 3
    assert found["b"] is None


def test_every_error_is_in_the_table_of_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = exit_code_rows()
    codes = [row["exit"] for row in rows]
    assert codes == sorted(set(codes))
    ours = {kind.exit_code for kind in every_kind() if kind is not SynclineError}
    assert ours | {0, 1, 2, 13, 130} <= set(codes)
    assert run(["exit-codes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows


def test_the_table_of_exit_codes_is_whole_in_a_window_of_80(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "PIPE_WIDTH", 80)
    monkeypatch.setattr(output, "console", output.console.__wrapped__)  # not one made before
    assert run(["exit-codes"]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    words = " ".join(shown.split())
    for row in exit_code_rows():
        assert f"{row['exit']} " in words and str(row["meaning"]).split()[-1] in words


def test_an_unforeseen_fault_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(as_json: bool = False) -> None:
        raise ZeroDivisionError("a planted fault\nwith two lines")

    monkeypatch.setattr("syncline.cli.about.exit_code_rows", fail)
    assert run(["exit-codes"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert "a planted fault" in said and "SYNCLINE_DEBUG" in said
    monkeypatch.setenv("SYNCLINE_DEBUG", "1")
    assert run(["exit-codes"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_round_that_lost_a_replica_says_so() -> None:
    """Not "loss", which reads like the training's."""
    lost = RoundReport(
        fragment=0,
        fragment_name="all",
        kind="pseudo-gradient",
        revision=3,
        committed_at=0.0,
        seconds=1.0,
        closed_by="loss",
    )
    out = io.StringIO()
    Console(file=out, width=200).print(watch._rounds_table([lost]))
    assert "lost replica" in out.getvalue() and "loss" not in out.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_alone_shows_that_something_goes_on(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    screen = Console(file=out, width=80, force_terminal=is_terminal)
    monkeypatch.setattr(output, "console", lambda **_: screen)
    with output.busy("Writing ..."):
        pass
    assert ("Writing ..." in out.getvalue()) is is_terminal
