"""A replica's inner state on its own disk: optimizer, data position, step, random numbers.

One folder a checkpoint, one safetensors file and one JSON file a rank: nothing that could run code
when it is read. A checkpoint appears whole or not at all, under the name of its step. Parameters
are in it too, and buffers that are saved with the model; a replica that takes part in a run gets
newer parameters from the service when it joins.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor

from syncline.disk import to_disk
from syncline.layout import local_part, saved_buffers
from syncline.train.ranks import RankGroup
from syncline.train.steps import BEFORE, checkpoints_in, none_in
from syncline_proto.codec import crc32c
from syncline_proto.errors import ConfigError

FORMAT = 1
PARAMETER, BUFFER, STATE, RANDOM = "parameter/", "buffer/", "optimizer/", "random/"
PIECE = 1 << 20
"""Bytes that are read at a time to sum a file."""
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a replica stands, beside its tensors."""

    run: str
    inner_step: Count
    tokens: Count
    """The run's tokens that schedules count, at this step."""
    stream: dict[str, int]
    """The state of its ``SequenceStream``."""
    world: int
    optimizer: str = ""
    """As the job names it; "" in checkpoints of earlier versions."""
    crc32c: str = ""
    """Of the file of tensors, in hex; "" as above."""
    format: int = FORMAT


class Checkpoints:
    """The checkpoints of one replica of one run, in one folder that all its ranks share."""

    def __init__(self, folder: Path, *, keep: int, ranks: RankGroup) -> None:
        self._folder = folder
        self._keep = keep
        self._ranks = ranks

    def must_be_new(self) -> None:
        """Refuse to start at step 0 among checkpoints that a later ``load`` would prefer.

        Raises:
            ConfigError: there are some.
        """
        found = checkpoints_in(self._folder)
        if found:
            raise ConfigError(
                f"checkpoint.folder: {self._folder} has checkpoints of this run, up to "
                f"{found[-1].name}; go on with --resume, or remove the folder to start anew."
            )

    def __bool__(self) -> bool:
        """Whether there is one to load."""
        return self.newest is not None

    @property
    def newest(self) -> Path | None:
        """The one that ``load`` would take up."""
        return next(reversed(checkpoints_in(self._folder)), None)

    def save(self, position: Position, model: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
        """Write one and remove the oldest of the others beyond ``keep``. All ranks must call it.

        Raises:
            ConfigError: the folder cannot be written; on all ranks, if one of them cannot.
        """
        final = self._folder / f"step-{position.inner_step:010d}"
        hidden = self._folder / f".{final.name}.writing"
        with self._agreed():
            if self._ranks.first:
                shutil.rmtree(hidden, ignore_errors=True)
                hidden.mkdir(parents=True)
        with self._agreed():
            tensors = dict(_tensors(model, optimizer, self._ranks))
            path = hidden / f"rank-{self._ranks.index}.safetensors"
            save_file(tensors, path)
            to_disk(path)
            summed = replace(position, crc32c=_sum(path))
            path = path.with_suffix(".json")
            path.write_text(json.dumps(asdict(summed), indent=2))
            to_disk(path)
        with self._agreed():
            if self._ranks.first:
                self._show(hidden, final)
        return final

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, run: str, name: str
    ) -> Position:
        """Take up the newest one: the model, the optimizer's state, random numbers.

        ``name`` is the optimizer's in the job. All ranks must call it.

        Raises:
            FileMissing: there is none.
            ConfigError: it is of another run, model, optimizer or number of ranks, or damaged.
        """
        newest = self.newest
        if newest is None:
            raise none_in(self._folder)
        position = _read_position(newest / f"rank-{self._ranks.index}.json", newest)
        for what, saved, here in (
            ("run", position.run, run),
            ("number of ranks", position.world, self._ranks.count),
            ("optimizer", position.optimizer or name, name),
        ):
            if saved != here:
                raise ConfigError(
                    f"the checkpoint {newest} is of {what} {saved}, not {here}; "
                    "start as it was made, or without --resume."
                )
        path = newest / f"rank-{self._ranks.index}.safetensors"
        try:
            if position.crc32c and position.crc32c != _sum(path):
                raise _damaged(path, newest)
            tensors = load_file(path)
            _restore(tensors, model, optimizer, self._ranks)
        except (OSError, SafetensorError, KeyError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the checkpoint {newest} does not fit this job ({error}); start as it was made, "
                "or without --resume."
            ) from None
        return position

    @contextmanager
    def _agreed(self) -> Iterator[None]:
        """Wait for all ranks behind a part of a save; what one could not write fails on each."""
        failure = ""
        try:
            yield
        except (OSError, SafetensorError) as error:
            failure = str(error) or type(error).__name__
        if self._ranks.sum([float(bool(failure))])[0]:
            raise ConfigError(
                f"checkpoint.folder: cannot write {self._folder}: {failure or 'see another rank'}."
            )

    def _show(self, hidden: Path, final: Path) -> None:
        """Give a whole checkpoint its name, and remove the oldest of the others."""
        to_disk(hidden)
        before = self._folder / f".{final.name}.before"
        if final.is_dir():  # which counts until the new one is there
            shutil.rmtree(before, ignore_errors=True)
            final.rename(before)
        hidden.rename(final)
        to_disk(self._folder)
        for path in self._folder.iterdir():
            replaced = BEFORE.match(path.name)
            if replaced and (self._folder / replaced[1]).is_dir():
                shutil.rmtree(path, ignore_errors=True)
        others = [path for path in checkpoints_in(self._folder) if path != final]
        for old in others[: max(0, len(others) + 1 - self._keep)]:
            shutil.rmtree(old, ignore_errors=True)


def told_of_interrupt(inner_step: int, kept: Checkpoints | None) -> str:
    """What Ctrl+C leaves of a training that is in no run, and how to lose less next time."""
    interrupted = f"Interrupted after inner step {inner_step}"
    if kept is None:
        return f"{interrupted}; nothing of it is kept: set checkpoint.folder."
    less = "SIGTERM instead of Ctrl+C keeps the last step, too."
    if kept.newest is None:
        return f"{interrupted}; nothing of it is kept: no checkpoint was due yet. {less}"
    return f"{interrupted}; --resume goes on from {kept.newest}. {less}"


def _read_position(path: Path, folder: Path) -> Position:
    try:
        position = TypeAdapter(Position).validate_json(path.read_bytes())
    except OSError:
        raise ConfigError(
            f"the checkpoint {folder} has no {path.name}; start with as many ranks as it was made "
            "with, or without --resume."
        ) from None
    except ValidationError:
        raise _damaged(path, folder) from None
    if position.format != FORMAT:
        raise ConfigError(f"{path} is of format {position.format}; start without --resume.")
    return position


def _damaged(path: Path, folder: Path) -> ConfigError:
    return ConfigError(f"{path} is damaged; remove {folder} to use an older one.")


def _sum(path: Path) -> str:
    """The CRC-32C of a file, in hex."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            crc = crc32c(piece, crc)
    return f"{crc:08x}"


def _tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, ranks: RankGroup
) -> Iterator[tuple[str, torch.Tensor]]:
    """This rank's tensors under names that do not depend on the parameters' order."""
    for name, parameter in model.named_parameters():
        yield PARAMETER + name, local_part(parameter).cpu().contiguous()
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{STATE}{key}/{name}", local_part(value).cpu().contiguous()
    for name, buffer in saved_buffers(model).items():
        yield BUFFER + name, local_part(buffer).cpu().contiguous().clone()  # some share memory
    yield RANDOM + "cpu", torch.get_rng_state()
    if ranks.device.type == "cuda":
        yield RANDOM + "cuda", torch.cuda.get_rng_state(ranks.device)


@torch.no_grad()
def _restore(
    tensors: dict[str, torch.Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: RankGroup,
) -> None:
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        local_part(parameter).copy_(
            _of_shape(tensors[PARAMETER + name], local_part(parameter), name)
        )
    buffers = saved_buffers(model)
    fused = {p for group in optimizer.param_groups if group.get("fused") for p in group["params"]}
    for name, saved in tensors.items():
        if name.startswith(BUFFER):
            here = local_part(buffers[name.removeprefix(BUFFER)])
            if not torch.equal(here, _of_shape(saved, here, name).to(here.device)):
                here.copy_(saved)
        if name.startswith(STATE):
            key, _, of = name.removeprefix(STATE).partition("/")
            parameter = parameters[of]
            optimizer.state[parameter][key] = _like(saved, parameter, parameter in fused)
    torch.set_rng_state(tensors[RANDOM + "cpu"])
    if ranks.device.type == "cuda" and RANDOM + "cuda" in tensors:
        torch.cuda.set_rng_state(tensors[RANDOM + "cuda"], ranks.device)


def _like(saved: torch.Tensor, parameter: torch.Tensor, is_fused: bool) -> torch.Tensor:
    """An optimizer's value for the parameter: a scalar counter, or sharded as it is."""
    if saved.ndim == 0 and parameter.ndim > 0:
        # AdamW counts its steps on the CPU; a fused one's kernel reads them where it computes.
        return saved.to(local_part(parameter).device) if is_fused else saved
    local = _of_shape(saved, local_part(parameter), "optimizer").to(local_part(parameter).device)
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _of_shape(saved: torch.Tensor, wanted: torch.Tensor, name: str) -> torch.Tensor:
    if saved.shape != wanted.shape:
        raise ValueError(f"{name} has shape {list(saved.shape)}, not {list(wanted.shape)}")
    return saved
