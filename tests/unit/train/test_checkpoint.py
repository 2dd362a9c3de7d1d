"""One that cannot be written fails on every rank; one just written is never removed."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
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


def kept(folder: Path, step: int = 3, **position: Any) -> tuple[Checkpoints, nn.Module, Path]:
    """Checkpoints with one of a model that has running statistics, just moved."""
    model = normed()
    checkpoints = Checkpoints(folder, keep=1, ranks=RankGroup())
    model(torch.randn(8, 2))
    said = {"run": "run", "inner_step": step, "tokens": 9, "stream": {}, "world": 1} | position
    path = checkpoints.save(Position(**said), model, torch.optim.AdamW(model.parameters()))
    return checkpoints, model, path


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def loaded(checkpoints: Checkpoints, name: str = "adamw") -> nn.Module:
    model = normed()
    checkpoints.load(model, torch.optim.AdamW(model.parameters()), run="run", name=name)
    return model


def test_buffers_that_are_saved_with_a_model_are_in_it(tmp_path: Path) -> None:
    checkpoints, model, path = kept(tmp_path)
    there = loaded(checkpoints).state_dict()
    assert {"1.running_mean", "1.num_batches_tracked"} < there.keys()
    assert all(torch.equal(there[name], value) for name, value in model.state_dict().items())
    # One of an earlier version has none, and does not say of whose optimizer it is.
    tensors = load_file(path / "rank-0.safetensors")
    older = {name: value for name, value in tensors.items() if not name.startswith("buffer/")}
    save_file(older, path / "rank-0.safetensors")
    told = json.loads((path / "rank-0.json").read_text())
    del told["crc32c"], told["optimizer"]
    (path / "rank-0.json").write_text(json.dumps(told))
    there = loaded(checkpoints).state_dict()
    assert torch.equal(there["0.weight"], model.state_dict()["0.weight"])
    assert not there["1.running_mean"].any()


def test_it_is_of_one_optimizer(tmp_path: Path) -> None:
    checkpoints, _, _ = kept(tmp_path, optimizer="adamw")
    with pytest.raises(ConfigError, match="is of optimizer adamw, not muon; start as it was made"):
        loaded(checkpoints, "muon")
    loaded(checkpoints)


@pytest.mark.parametrize("what", ["tensors", "step"])
def test_a_damaged_one_is_named(tmp_path: Path, what: str) -> None:
    checkpoints, _, path = kept(tmp_path)
    damaged = path / f"rank-0.{'safetensors' if what == 'tensors' else 'json'}"
    data = damaged.read_bytes()
    if what == "tensors":
        damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        damaged.write_bytes(data.replace(b'"inner_step": 3', b'"inner_step": -3'))
    with pytest.raises(ConfigError) as refused:
        loaded(checkpoints)
    assert refused.value.message == f"{damaged} is damaged; remove {path} to use an older one."


def test_one_is_there_whenever_its_successor_of_the_same_step_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, model, path = kept(tmp_path)

    def cut_off(self: Path, target: Path) -> Path:
        if ".writing" in self.name:
            raise KeyboardInterrupt
        return rename(self, target)

    rename = Path.rename
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", cut_off)
        kept(tmp_path)
    assert not path.exists()
    assert torch.equal(loaded(checkpoints).state_dict()["0.weight"], model.state_dict()["0.weight"])
    checkpoints, model, _ = kept(tmp_path)
    assert torch.equal(loaded(checkpoints).state_dict()["0.weight"], model.state_dict()["0.weight"])
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


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
