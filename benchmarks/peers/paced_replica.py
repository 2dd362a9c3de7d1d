"""One replica of ``exposed.py``: trains in one run after the other, and tells how long it waited.

Its model is a stack of matrices of as many parameters as asked for. A step lasts ``step_s`` besides
its waits and Syncline's own work in hooks: what its arithmetic leaves of that it sleeps, so that
replicas on one machine do not take each other's processors, and no work of ours hides in a sleep.
With 0 it goes as fast as it can. On a GPU a step is over when the GPU has done it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peers.gate import me, place, wait_for
from syncline import Replica
from syncline.launch.guard import descendants

BLOCKS, BATCH = 8, 16


class Stack(nn.Module):
    """Blocks of one matrix each, and a head."""

    def __init__(self, parameters: int, device: str = "cpu") -> None:
        super().__init__()
        width = round((parameters / BLOCKS) ** 0.5)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(BLOCKS))
        self.head = nn.Linear(width, 1)
        self.to(device)
        self.input = torch.randn(BATCH, width, device=device)

    def forward(self) -> Tensor:
        h = self.input
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        return self.head(h).square().mean()


def main() -> None:
    number, _, parameters = me()
    where = place()
    wait_for(where["control"])
    for run in json.loads(where["runs"]):
        told = trained(run, number, parameters, where)
        path = Path(where["told"]) / f"{run['name']}-{number}"
        path.with_suffix(".new").write_text(json.dumps(told))
        path.with_suffix(".new").rename(path)


def trained(
    run: dict[str, Any], number: int, parameters: int, where: dict[str, str]
) -> dict[str, float]:
    """Train in a run; what ``figures`` grew by in the rounds that count."""
    torch.manual_seed(number)
    device = where["device"]
    model = Stack(parameters, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    settings, step_s = run["settings"], run["step_s"]
    first, last = (int(where[name]) * settings["sync_every"] for name in ("warm_up", "rounds"))
    with Replica(
        model,
        optimizer,
        run=run["name"],
        name=f"replica-{number}",
        settings=settings,
        control=f"http://{where['control']}",
        drain_on_sigterm=False,  # who is interrupted ends, whatever is left of its steps
    ) as replica:
        before = {}
        for step in range(first + last):
            if step == first:
                before = figures(replica, int(where["launcher"]))
            began, before_s = time.monotonic(), synchronising_s(replica)
            replica.count_tokens(1)
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
            if device != "cpu":
                torch.cuda.synchronize()
            if run["blocking"]:
                replica.finish()
            spent_s = time.monotonic() - began - (synchronising_s(replica) - before_s)
            time.sleep(max(0.0, step_s - spent_s))
        after = figures(replica, int(where["launcher"]))
        replica.finish()
    return {name: after[name] - before[name] for name in after}


def synchronising_s(replica: Replica) -> float:
    """What synchronisation has cost the training thread so far: waits, and work in hooks."""
    return replica.stats.exposed_sync_s + replica.stats.hook_s


def figures(replica: Replica, launcher: int) -> dict[str, float]:
    """What is read at both ends of what is measured."""
    return {
        "seconds": time.monotonic(),
        "exposed_s": replica.stats.exposed_sync_s,
        "hook_s": replica.stats.hook_s,
        "cpu_s": cpu_s(launcher),
        "bytes_up": float(replica.stats.bytes_up),
        "bytes_down": float(replica.stats.bytes_down),
        "rounds": float(replica.stats.rounds),
    }


def cpu_s(launcher: int) -> float:
    """CPU seconds of a process and of all that run below it, or did and are reaped."""
    ticks = 0
    for pid in (launcher, *descendants(launcher)):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            # The name in parentheses may hold anything; of what follows it these are user, system,
            # and the same of children that it has waited for.
            told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, told[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
