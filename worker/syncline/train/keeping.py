"""When a replica's inner state is written and read again, and where that is.

How it lies on the disk is for ``checkpoint`` to say.
"""

from __future__ import annotations

from pathlib import Path

import structlog
import torch
from torch import nn

from syncline.data.errors import DataError
from syncline.train.checkpoint import Checkpoints, Position, told_of_interrupt
from syncline.train.config import JobConfig
from syncline.train.inputs import Feed
from syncline.train.ranks import RankGroup
from syncline.train.steps import NO_FOLDER, checkpoints_in
from syncline.voice import NAMED_MAX
from syncline_proto.errors import ConfigError

log = structlog.get_logger()


class Keeping:
    """One replica's checkpoints; none, where the job names no folder."""

    def __init__(
        self, job: JobConfig, own: str, ranks: RankGroup, *, is_new: bool, is_named: bool
    ) -> None:
        """``own`` is this replica's name, which somebody gave (``is_named``) or is made up.

        ``is_new``: it begins at step 0.

        Raises:
            ConfigError: it is new, and there are checkpoints that a later one would take up; or it
                is to go on under a made-up name, and only others have any.
        """
        self._run = job.run.name
        self._optimizer = job.optimizer.name
        self._world = ranks.count
        self._checkpoints: Checkpoints | None = None
        self._taken: Path | None = None
        """The one that was taken up."""
        section = job.checkpoint
        if section.folder is not None:
            folder = section.folder / job.run.name / own
            self._checkpoints = Checkpoints(folder, keep=section.keep, ranks=ranks)
            if is_new:
                self._checkpoints.must_be_new()
            if not is_named:
                _see_others(folder, is_new=is_new)

    def resumed(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, in_run: bool
    ) -> Position | None:
        """Take up what was saved; a replica of a run may do without: that has its parameters.

        Raises:
            FileMissing: training alone, there is nothing.
            ConfigError: the job names no folder; or as ``Checkpoints.load`` does.
        """
        if self._checkpoints is None:
            raise ConfigError(NO_FOLDER)
        if in_run and not self._checkpoints:
            log.info("no checkpoint: the inner optimizer starts anew")
            return None
        self._taken = self._checkpoints.newest
        return self._checkpoints.load(model, optimizer, run=self._run, name=self._optimizer)

    def place(self, feed: Feed, stream: dict[str, int]) -> None:
        """Let the data go on from where the checkpoint that was taken up says.

        Raises:
            DataError: it is of other data, or nowhere; the checkpoint is named.
        """
        try:
            feed.load_state_dict(stream)
        except DataError as error:
            raise DataError(
                f"the checkpoint {self._taken} does not fit the data: {error.message.rstrip('.')}; "
                "start as it was made, or remove it to use an older one."
            ) from None

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        inner_step: int,
        tokens: int,
        stream: dict[str, int],
    ) -> None:
        """Write one, where there is a folder for it. All ranks must call it.

        Raises:
            ConfigError: it cannot be written.
        """
        if self._checkpoints is not None:
            position = Position(
                run=self._run,
                inner_step=inner_step,
                tokens=tokens,
                stream=stream,
                world=self._world,
                optimizer=self._optimizer,
            )
            self._checkpoints.save(position, model, optimizer)

    def left_by_interrupt(self, inner_step: int) -> str:
        """What Ctrl+C leaves of who trains alone, in words."""
        return told_of_interrupt(inner_step, self._checkpoints)


def _see_others(own: Path, *, is_new: bool) -> None:
    """Whose name is made up of a process finds none of an earlier one: say which there are.

    Raises:
        ConfigError: it is to go on from one.
    """
    beside = own.parent.iterdir() if own.parent.is_dir() else ()
    others = sorted(path.name for path in beside if checkpoints_in(path))
    if not others or own.name in others:
        return
    named = ", ".join(others[:NAMED_MAX]) + (", ..." if len(others) > NAMED_MAX else "")
    why = f"no checkpoint of {own.name} in {own.parent}; there are: {named}"
    so = "set SYNCLINE_REPLICA or --replica to one of them to go on from it"
    if not is_new:
        raise ConfigError(f"{why}; {so}, or to a new name.")
    log.warning("checkpoint.others", why=why, so=so)
