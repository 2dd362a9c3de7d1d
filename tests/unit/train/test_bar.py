"""The bar of a training stands at its end where that is, however seldom it was told on the way."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from syncline.train.progress import BarListener, Ending, Start
from syncline_testing.views import NOW, ending


@pytest.mark.parametrize(
    ("ended", "share"), [(ending(100), "100%"), (ending(50), "50%"), (None, "30%")]
)
def test_the_bar_ends_where_the_training_did(ended: Ending | None, share: str) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=80)
    bar = BarListener(console)
    bar.start(
        Start(
            run="r",
            replica=None,
            parameters=1,
            tokens_total=100,
            held_out_loss=5.0,
            bits_per_byte=8.0,
        )
    )
    bar.update(replace(NOW, tokens=30, revision=0, eta_s=75.0))
    bar._bar.refresh()
    bar.close(ended)
    assert "left 0:01:15" in screen.getvalue()
    last = next(line for line in reversed(screen.getvalue().splitlines()) if "%" in line)
    assert share in last.split() and "left" not in last
