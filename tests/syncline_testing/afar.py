"""A replica on a host of its own, which trains until it is done or asked to leave.

``python -m syncline_testing.afar JOB`` does what the documents say of a loop of one's own: where
its lease has run out it comes back as a new life, once the control plane can be asked. At its end
it tells how far each of its lives came.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from syncline_proto.errors import LeaseLost
from syncline_testing.apart import REPLICAS, Apart, inside
from syncline_testing.replicas import (
    BATCH,
    LENGTH,
    VOCABULARY,
    WIDTH,
    TinyModel,
    Trial,
    loss_of,
)
from syncline_testing.waiting import wait_until
from syncline_testing.warm import Program, warm

STEP_S = 0.1
"""An inner step, with what a larger model would take."""
RETURN_S, END_S = 40.0, 60.0


class Afar:
    """The process, as a test sees it."""

    def __init__(self, name: str, host: int, out: Path, log: Path, process: Program) -> None:
        self.name, self.host, self._out, self._log = name, host, out, log
        self._process = process

    def ended(self) -> list[int]:
        """Wait for its end; the inner steps of each of its lives."""
        code = self._process.wait(END_S)
        assert code == 0, f"{self.name} ended with {code}"
        return json.loads(self._out.read_text())["steps"]

    def read(self) -> list[int]:
        """What it has read of leased data, once it has ended."""
        return json.loads(self._out.read_text())["read"]

    def said(self) -> str:
        """Its log so far."""
        return self._log.read_text(errors="replace")


@contextmanager
def afar(
    apart: Apart,
    folder: Path,
    number: int,
    run: str,
    settings: Any,
    width: int = WIDTH,
    leased: bool = False,
) -> Iterator[Afar]:
    """Start the replica of that number, and a model so wide; it is gone at the end.

    ``leased``: it reads sequences that are leased, and none twice.
    """
    host, name = REPLICAS + number, f"replica-{number}"
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    job = {
        "namespace": apart.links.name(host),
        "control": apart.control_url,
        "run": run,
        "seed": number,
        "settings": settings,
        "width": width,
        "leased": leased,
    }
    path.write_text(json.dumps(job))
    with warm("-m", __name__, str(path), log=log) as process:
        yield Afar(name, host, path.with_suffix(".out.json"), log, process)


def main(path: Path) -> None:
    job = json.loads(path.read_text())
    torch.set_num_threads(1)
    with inside(job["namespace"]):
        how = {"model": TinyModel(job["seed"], width=job["width"]), "settings": job["settings"]}
        if job["leased"]:
            trial = Reader(job["control"], job["run"], job["seed"], tokens_of=_tokens_of, **how)
        else:
            trial = Trial(job["control"], job["run"], job["seed"], **how)
        steps = _trained(trial)
    read = trial.read if isinstance(trial, Reader) else []
    path.with_suffix(".out.json").write_text(json.dumps({"steps": steps, "read": read}))


class Sequences:
    """More than are ever read; each begins with its own number."""

    def __len__(self) -> int:
        return VOCABULARY**3

    def __getitem__(self, index: int) -> Tensor:
        own = (index // VOCABULARY**2, index // VOCABULARY % VOCABULARY, index % VOCABULARY)
        return torch.tensor([*own, *range(LENGTH - 2)])


def _tokens_of(batch: Tensor) -> int:
    return batch[:, 1:].numel()


class Reader(Trial):
    """Trains on what it is leased, and remembers that."""

    read: list[int]
    _batches: Iterator[Tensor] | None = None

    def step(self, count: int = 1) -> Reader:
        if self._batches is None:
            self.read = []
            self._batches = self.replica.leased(Sequences(), BATCH)
        for _, batch in zip(range(count), self._batches, strict=False):
            self.read += [
                VOCABULARY * (VOCABULARY * int(a) + int(b)) + int(c) for a, b, c, *_ in batch
            ]
            loss_of(self.model, batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


def _trained(trial: Trial) -> list[int]:
    """Train to the end; the inner steps of each life."""
    steps, replica = list[int](), trial.replica
    while True:
        try:
            with replica:
                while not replica.done:
                    trial.step()
                    time.sleep(STEP_S)
            return [*steps, replica.inner_step]
        except LeaseLost:
            steps.append(replica.inner_step)
            trial.optimizer.zero_grad()
            wait_until(replica.may_return, RETURN_S, "it may come back")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
