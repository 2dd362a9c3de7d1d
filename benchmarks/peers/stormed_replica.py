"""One replica of ``storm.py``: trains at a fixed pace on leased data, and may be killed.

A step lasts ``step_s``: what its arithmetic leaves of that it sleeps. Whatever makes it longer is a
wait. How it stands lies in a file that is replaced whole, several times a second; what its pushes
were answered in another, which outlives it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor

from answered import note_answers
from peers.gate import me, place, wait_for
from peers.paced_replica import Stack
from syncline import Replica

TELL_S, ANSWERS = 0.25, ".pushes"
BATCH = 4


class Numbers:
    """Sequences of one number each, as many tokens long as asked for."""

    def __init__(self, count: int, length: int) -> None:
        self._count, self._length = count, length

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": torch.full((self._length,), index)}


def main() -> None:
    number, _, parameters = me()
    where = place()
    wait_for(where["control"])
    torch.manual_seed(number)
    model = Stack(parameters)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step_s = float(where["step_s"])
    told = Path(where["told"]) / f"replica-{number}"
    note_answers(told.with_suffix(ANSWERS))
    data = Numbers(int(where["sequences"]), int(where["length"]))
    with Replica(
        model,
        optimizer,
        run=where["run"],
        name=f"replica-{number}",
        settings=json.loads(where["settings"]),
        control=f"http://{where['control']}",
    ) as replica:
        signal.signal(signal.SIGTERM, lambda *_: replica.request_drain())
        longest_s, last_told_s, began = 0.0, 0.0, time.monotonic()
        for _ in replica.leased(data, batch_size=BATCH):
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
            spent_s = time.monotonic() - began
            time.sleep(max(0.0, step_s - spent_s))
            if replica.inner_step > 1:  # the first one is that of who has just joined
                longest_s = max(longest_s, spent_s - step_s)
            began = time.monotonic()
            if began > last_told_s + TELL_S:
                last_told_s = began
                tell(told, replica, longest_s)
        tell(told, replica, longest_s)


def tell(path: Path, replica: Replica, longest_wait_s: float) -> None:
    """Say how it stands."""
    words = {
        "pid": os.getpid(),
        "incarnation": replica.incarnation,
        "steps": replica.inner_step,
        "revision": replica.revision,
        "longest_wait_s": longest_wait_s,
    }
    path.with_suffix(".new").write_text(json.dumps(words))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    main()
