"""What ``syncline data status`` says of a dataset that was walked many times."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from syncline.cli.data import _coverage
from syncline_proto.leased import Dataset, DataView, EpochView

SIZE = 10


def shown(epoch: int, epochs: Sequence[int], left_out: int, every: bool) -> list[list[str]]:
    """The words of each line; ``epoch`` is the lowest that is not done, the newest is begun."""
    views = [
        EpochView(epoch=one, trained=n, excluded=0, leased=0, free=SIZE - n)
        for one in epochs
        for n in [SIZE if one < epoch else 3]
    ]
    found = DataView(
        dataset=Dataset(sequences=SIZE, seed=0),
        epoch=epoch,
        epochs=views,
        epochs_left_out=left_out,
    )
    out = io.StringIO()
    Console(file=out, width=100).print(_coverage(found, every))
    return [line.split() for line in out.getvalue().splitlines()]


def rows(lines: list[list[str]]) -> list[int]:
    return [int(line[0]) for line in lines if len(line) > 4 and line[0].isdecimal()]


def test_epochs_that_are_done_are_one_line() -> None:
    lines = shown(1104, range(1005, 1105), 1005, every=False)
    assert ["done", "epochs", "0", "to", "1,103"] in lines
    assert rows(lines) == [1104]
    assert ["done", "epoch", "0"] in shown(1, [0, 1], 0, every=False)


def test_on_request_each_has_its_own_and_what_is_left_out_is_said() -> None:
    lines = shown(1104, range(1005, 1105), 1005, every=True)
    assert ["done", "epochs", "0", "to", "1,004"] in lines
    assert rows(lines) == [*range(1005, 1105)]


@pytest.mark.parametrize("every", [False, True])
def test_what_is_not_done_and_not_listed_is_not_said_to_be_done(every: bool) -> None:
    lines = shown(7, range(20, 120), 20, every)
    assert ["done", "epochs", "0", "to", "6"] in lines
    assert ["not", "listed", "epochs", "7", "to", "19"] in lines
    assert rows(lines) == [*range(20, 120)]
