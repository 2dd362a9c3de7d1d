"""One that cannot be written fails on every rank; one just written is never removed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn

from syncline.train.checkpoint import Checkpoints, Position
from syncline.train.ranks import RankGroup
from syncline_proto.errors import ConfigError

WORLD = 2


@dataclass
class Table:
    """Where the ranks of a test, threads of one process, put down their numbers."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(WORLD, timeout=20))
    numbers: list[list[float]] = field(default_factory=lambda: [[] for _ in range(WORLD)])


@dataclass(frozen=True, kw_only=True)
class Seat(RankGroup):
    """One rank at the table."""

    count: int = WORLD
    table: Table

    def sum(self, values: list[float]) -> list[float]:  # type: ignore[override]
        self.table.numbers[self.index] = values
        self.table.barrier.wait()
        told = [float(sum(column)) for column in zip(*self.table.numbers, strict=True)]
        self.table.barrier.wait()
        return told


def saved(folder: Path) -> list[str]:
    """What a save came to on each rank: its folder's name, or the error's sentence."""
    table = Table()

    def save(rank: int) -> str:
        model = nn.Linear(2, 2)
        checkpoints = Checkpoints(folder, keep=2, ranks=Seat(index=rank, table=table))
        position = Position(run="run", inner_step=3, tokens=9, stream={}, world=WORLD)
        try:
            return checkpoints.save(position, model, torch.optim.AdamW(model.parameters())).name
        except ConfigError as error:
            return error.message

    with ThreadPoolExecutor(WORLD) as threads:
        return list(threads.map(save, range(WORLD)))


def test_all_ranks_write_one_checkpoint(tmp_path: Path) -> None:
    assert saved(tmp_path) == ["step-0000000003"] * WORLD
    written = sorted(path.name for path in (tmp_path / "step-0000000003").iterdir())
    assert written == [f"rank-{rank}.{kind}" for rank in (0, 1) for kind in ("json", "safetensors")]
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000003"]


def test_a_folder_that_cannot_be_made_ends_every_rank_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = saved(tmp_path / "file" / "kept")
    assert first.startswith("checkpoint.folder: cannot write") and "Not a directory" in first
    assert second.endswith("see another rank.")


def test_what_one_rank_cannot_write_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step-0000000003").touch()  # in the way of the last rename
    first, second = saved(tmp_path)
    assert "Not a directory" in first and second.endswith("see another rank.")


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_one_just_written_outlives_those_of_higher_steps(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=keep, ranks=RankGroup())
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in (8, 9, 1, 2):
        position = Position(run="run", inner_step=step, tokens=9, stream={}, world=1)
        written = checkpoints.save(position, model, optimizer)
        assert (written / "rank-0.safetensors").is_file()
    kept = sorted(int(path.name[-10:]) for path in tmp_path.iterdir())
    assert kept == {1: [2], 2: [2, 9], 5: [1, 2, 8, 9]}[keep]
