"""One replica of ``exposed.py``: trains at a given pace, and tells how long it waited.

Its model is a stack of matrices of as many parameters as asked for. A step lasts ``step_s`` besides
its waits: what its arithmetic leaves of that it sleeps, so that replicas on one machine do not take
each other's processors. With 0 it goes as fast as it can.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from peers.gate import me, place, wait_for
from syncline import Replica

BLOCKS, BATCH = 8, 16


class Stack(nn.Module):
    """Blocks of one matrix each, and a head."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        width = round((parameters / BLOCKS) ** 0.5)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(BLOCKS))
        self.head = nn.Linear(width, 1)
        self.input = torch.randn(BATCH, width)

    def forward(self) -> Tensor:
        h = self.input
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        return self.head(h).square().mean()


def main() -> None:
    number, _, parameters = me()
    where = place()
    wait_for(where["control"])
    torch.manual_seed(number)
    model = Stack(parameters)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    settings = json.loads(where["settings"])
    every, step_s = settings["sync_every"], float(where["step_s"])
    first, last = (int(where[name]) * every for name in ("warm_up", "rounds"))
    with Replica(
        model,
        optimizer,
        run=where["run"],
        name=f"replica-{number}",
        settings=settings,
        control=f"http://{where['control']}",
    ) as replica:
        before = {}
        for step in range(first + last):
            if step == first:
                before = figures(replica)
            began, waited_s = time.monotonic(), replica.stats.exposed_sync_s
            replica.count_tokens(1)
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
            if where["blocking"]:
                replica.finish()
            spent_s = time.monotonic() - began - (replica.stats.exposed_sync_s - waited_s)
            time.sleep(max(0.0, step_s - spent_s))
        after = figures(replica)
        told = {name: after[name] - before[name] for name in after}
        Path(f"{where['told']}-{number}").write_text(json.dumps(told))
        replica.finish()


def figures(replica: Replica) -> dict[str, float]:
    """What is read at both ends of what is measured."""
    return {
        "seconds": time.monotonic(),
        "exposed_s": replica.stats.exposed_sync_s,
        "cpu_s": time.process_time(),
        "bytes_up": float(replica.stats.bytes_up),
        "rounds": float(replica.stats.rounds),
    }


if __name__ == "__main__":
    main()
