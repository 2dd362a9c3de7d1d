"""The bar of a training stands at its end where that is, however seldom it was told on the way."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from syncline.train.progress import BarListener, Ending, Start


def ending(tokens: int) -> Ending:
    return Ending(
        reason="budget",
        bits_per_byte_start=8.0,
        held_out_local=None,
        bits_per_byte_local=None,
        held_out_merged=2.0,
        bits_per_byte_merged=3.0,
        tokens=tokens,
        own_tokens=tokens,
        seconds=1.0,
        tokens_per_second=1.0,
        exposed_sync_s=0.0,
        exposed_sync_share=0.0,
        rounds=1,
        revision=1,
        inner_step=1,
        skipped_steps=0,
        exported=None,
    )


@pytest.mark.parametrize(
    ("ended", "share"), [(ending(100), "100%"), (ending(50), "50%"), (None, "0%")]
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
    bar.close(ended)
    last = next(line for line in reversed(screen.getvalue().splitlines()) if "%" in line)
    assert share in last.split()
