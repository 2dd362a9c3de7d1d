"""Curves on rank 0, over the run's tokens: for TensorBoard, for Weights & Biases, or for nobody.

Both get the same figures under the same names, and neither is imported where the job does not ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from syncline.train.config import JobConfig
from syncline.train.progress import Snapshot
from syncline_proto.errors import ConfigError

TOKENS = "tokens"
"""What curves of Weights & Biases are drawn over; its own steps are only counted."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Somebody who draws: figures at a number of tokens, until ``close``."""

    add: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


class Board:
    """Scalars of one replica."""

    def __init__(self, job: JobConfig, own: str) -> None:
        """``own`` is this replica's name.

        Raises:
            ConfigError: Weights & Biases is asked for and not installed, or refuses.
        """
        self._writers: list[Writer] = []
        if job.log.tensorboard is not None:
            self._writers.append(_tensorboard(str(job.log.tensorboard / own)))
        if job.log.wandb is not None:
            self._writers.append(_weights_and_biases(job, job.log.wandb, own))

    def snapshot(self, now: Snapshot) -> None:
        """Draw what a snapshot tells of training."""
        self._add(
            now.tokens,
            {
                "train/loss": now.loss,
                "train/bits_per_byte": now.bits_per_byte,
                "train/grad_norm": now.grad_norm,
                "train/lr": now.lr,
                "speed/tokens_per_second": now.tokens_per_second,
                "sync/revision": now.revision,
                "sync/exposed_share": now.exposed_sync_share,
                "sync/exposed_seconds": now.exposed_sync_s,
                "sync/bytes_up": now.bytes_up,
                "sync/bytes_down": now.bytes_down,
                "sync/stale_pushes": now.stale,
                "sync/aged_pushes": now.aged,
                "sync/last_age": now.last_age,
                **({} if now.mfu is None else {"speed/mfu": now.mfu}),
            },
        )

    def held_out(self, kind: str, tokens: int, loss: float, bits_per_byte: float) -> None:
        """Draw an evaluation; ``kind`` is ``held-out`` (own parameters) or ``merged``."""
        self._add(tokens, {f"{kind}/loss": loss, f"{kind}/bits_per_byte": bits_per_byte})

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def _add(self, tokens: int, values: Mapping[str, float]) -> None:
        """Draw what is finite: bits per byte are not, where nobody counted the bytes."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for writer in self._writers:
            writer.add(tokens, finite)


def _tensorboard(folder: str) -> Writer:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def add(tokens: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, tokens)

    return Writer(add, writer.close)


def _weights_and_biases(job: JobConfig, project: str, own: str) -> Writer:
    """A run of theirs for each life of a replica of ours, grouped by our run."""
    try:
        wandb: Any = import_module("wandb")
    except ImportError:
        raise ConfigError(
            "log.wandb needs Weights & Biases; install it with pip install 'syncline[wandb]', or "
            "leave the setting out."
        ) from None
    try:
        run = wandb.init(
            project=project, group=job.run.name, name=f"{job.run.name}/{own}", config=job.to_job()
        )
    except wandb.Error as error:
        raise ConfigError(f"log.wandb: {' '.join(str(error).split())}") from None
    run.define_metric("*", step_metric=TOKENS)

    def add(tokens: int, values: Mapping[str, float]) -> None:
        run.log({TOKENS: tokens, **values})

    return Writer(add, run.finish)
