"""The bar of a training stands at its end where that is, however seldom it was told on the way."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from syncline.train import progress
from syncline.train.progress import BarListener, Ending, LineListener, Start, listener_for
from syncline_testing.views import NOW, ending

TRAINING = "1,000 tokens/s  MFU 41.2%  loss 3.600 bits/byte  held-out 3.750 bits/byte"
SYNCHRONISATION = "grad norm 1  revision 3  sync 10.0%, 1 s  up 12.3 MB  down 1.23 kB  late 5"


START = Start(
    run="r",
    replica=None,
    parameters=1,
    tokens=10,
    tokens_total=100,
    held_out_loss=5.0,
    bits_per_byte=8.0,
)
LAST = (
    "5,000 tokens/s  MFU 206.0%  loss 3.600 bits/byte  held-out 2.800 bits/byte",
    "grad norm 1  revision 9  sync 2.0%, 2 s  up 20 MB  down 2 kB  late 5",
)


@pytest.mark.parametrize(
    ("ended", "share"), [(ending(100), "100%"), (ending(50), "50%"), (None, "30%")]
)
def test_the_bar_ends_where_the_training_did(ended: Ending | None, share: str) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=80)
    bar = BarListener(console)
    bar.start(START)
    bar.update(replace(NOW, tokens=30, eta_s=75.0))
    bar._bar.refresh()
    bar.close(ended)
    assert "left 0:01:15" in screen.getvalue()
    lines = [line.strip() for line in screen.getvalue().splitlines()]
    assert any(line.startswith(TRAINING) for line in lines)
    assert any(line.startswith(SYNCHRONISATION) for line in lines)
    bars = (line for line in reversed(screen.getvalue().splitlines()) if "━" in line)
    last = next(bars)
    assert share in last.split() and "left" not in last
    words = tuple(lines[lines.index(last.strip()) + 1 :][:2])
    assert words == (LAST if ended is not None else (TRAINING, SYNCHRONISATION))


def test_who_joins_a_run_under_way_begins_where_that_is() -> None:
    screen = io.StringIO()
    bar = BarListener(Console(file=screen, force_terminal=True, color_system=None, width=80))
    bar.start(START)
    bar.close()
    last = next(line for line in reversed(screen.getvalue().splitlines()) if "━" in line)
    assert "10%" in last.split()


def test_where_there_is_no_terminal_it_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    out = io.StringIO()
    lines = LineListener(Console(file=out, force_terminal=False))
    lines.start(START)
    for tokens in range(30, 55):
        lines.update(replace(NOW, tokens=tokens, tokens_total=100, eta_s=75.0))
        now_s += 1.0
    lines.close(ending(100))
    first, *told, last = out.getvalue().splitlines()
    assert first.startswith("r (alone): 1 parameters")
    assert [line.split("  ")[0] for line in told] == [f"{n} of 100 tokens" for n in (30, 40, 50)]
    assert all(TRAINING in line and line.endswith("left 0:01:15") for line in told)
    assert last.startswith("held-out ")


def test_a_log_gets_lines() -> None:
    assert isinstance(listener_for("bar", io.StringIO(), first=True), LineListener)
