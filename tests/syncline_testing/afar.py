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

from syncline_proto.errors import LeaseLost
from syncline_testing.apart import REPLICAS, Apart, inside
from syncline_testing.replicas import WIDTH, TinyModel, Trial
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
        return json.loads(self._out.read_text())

    def said(self) -> str:
        """Its log so far."""
        return self._log.read_text(errors="replace")


@contextmanager
def afar(
    apart: Apart, folder: Path, number: int, run: str, settings: Any, width: int = WIDTH
) -> Iterator[Afar]:
    """Start the replica of that number, and a model so wide; it is gone at the end."""
    host, name = REPLICAS + number, f"replica-{number}"
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    job = {
        "namespace": apart.links.name(host),
        "control": apart.control_url,
        "run": run,
        "seed": number,
        "settings": settings,
        "width": width,
    }
    path.write_text(json.dumps(job))
    with warm("-m", __name__, str(path), log=log) as process:
        yield Afar(name, host, path.with_suffix(".out.json"), log, process)


def main(path: Path) -> None:
    job = json.loads(path.read_text())
    torch.set_num_threads(1)
    with inside(job["namespace"]):
        model = TinyModel(job["seed"], width=job["width"])
        steps = _trained(
            Trial(job["control"], job["run"], job["seed"], model=model, settings=job["settings"])
        )
    path.with_suffix(".out.json").write_text(json.dumps(steps))


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
