"""However many replicas there are, the sums below them stay in the window."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group

from syncline.cli import live, output
from syncline.cli.window import Window
from syncline.launch.view import ReplicaNow, View
from syncline_testing.views import running


def drawn(parts: Window, height: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=100, height=height).print(parts)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def table(name: str, rows: int) -> output.Fitting:
    made = output.table((name,), [(f"{name}-{row}",) for row in range(rows)], empty="")
    assert isinstance(made, output.Fitting)
    return made


@pytest.mark.parametrize("height", range(8, 80))
def test_the_longest_tables_leave_rows_out_until_all_fits(height: int) -> None:
    long, short = table("long", 60), table("short", 5)
    lines = drawn(Window(Group(long, "between"), short, "the sums"), height)
    whole = 1 + 60 + 1 + 1 + 5 + 1
    assert len(lines) <= height
    assert len(lines) == min(height, whole) or height < 14  # where both tables are cut alike
    assert lines[-1] == "the sums" and "between" in lines
    seen = sum(line.startswith("long-") for line in lines)
    left_out = f"{60 - seen} more; a higher window or --json shows all." in lines
    assert left_out == (height < whole)
    if height >= 14:
        assert sum(line.startswith("short-") for line in lines) == 5


def test_a_window_that_is_too_low_for_any_row_has_the_sums_nearest() -> None:
    lines = drawn(Window(table("name", 9), "the sums"), 1)
    assert lines == ["name", "9 more; a higher window or --json shows all.", "the sums"]


def test_a_picture_drawn_again_in_a_higher_window_is_whole_again() -> None:
    parts = Window(table("name", 9))
    assert len(drawn(parts, 5)) == 5
    assert len(drawn(parts, 10)) == 10


def test_a_launch_of_many_replicas_keeps_its_sums_on_the_screen() -> None:
    replicas = {f"replica-{i}": ReplicaNow(name=f"replica-{i}") for i in range(60)}
    seen = View(run="tiny", page="http://127.0.0.1:1/", replicas=replicas)
    seen.state = running("tiny", replicas_alive=60)
    lines = drawn(Window(live.picture(seen)), 24)
    assert len(lines) == 24
    assert any("60 alive" in line for line in lines)
    assert any("more; a higher window" in line for line in lines)
