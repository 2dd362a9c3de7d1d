"""A replica that trains in several ways, one run after the other, and looks after each merge.

As a program (``python -m syncline_testing.matrix JOB``) it is one rank of a replica of several; a
test runs ``train`` itself for the other replica.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from syncline import Replica
from syncline.blocks import CanonicalNames
from syncline.interrupts import end
from syncline_testing.replicas import ANCHORS, STEP_TOKENS, TinyModel, batch, loss_of, published

ROUNDS, EVERY, OVERLAP = 3, 3, 2


def settings_of(overlap: int, codec: str) -> dict[str, Any]:
    """Of a run of two replicas."""
    return {
        "strategy": "diloco",
        "sync_every": EVERY,
        "min_replicas": 2,
        "overlap_steps": overlap,
        "codec": {"up": codec, "down": codec},
        "timeouts": {"lease": 10.0, "round_deadline": 60.0},
    }


def train(
    model: nn.Module,
    way: dict[str, Any],
    *,
    control: str,
    sync: str,
    name: str,
    seed: int,
    optimizer: Optimizer | None = None,
) -> list[float]:
    """Train all rounds of a run; how far the model was from the published value after each merge.

    With overlap it is away from it by what it did between the push and the merge, which comes with
    the forward pass.
    """
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    off: list[float] = []
    run, parts, overlap = way["run"], way["accumulate"], way["settings"]["overlap_steps"]
    pushed: dict[str, Tensor] = {}
    with Replica(
        model,
        optimizer,
        run=run,
        name=name,
        settings=way["settings"],
        control=control,
        anchor_device=ANCHORS,
    ) as replica:
        for step in range(ROUNDS * EVERY):
            merges = step > overlap > 0 and step % EVERY == overlap
            done = {key: value - pushed[key] for key, value in whole(model)} if merges else {}
            for part in range(parts):
                replica.count_tokens(STEP_TOKENS)
                (loss_of(model, batch(seed + 1000 * part, step)) / parts).backward()
            if merges:
                off.append(distance(model, sync, run, step // EVERY, done))
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % EVERY == 0:
                pushed = dict(whole(model))
                if not overlap or step + 1 == ROUNDS * EVERY:
                    replica.finish()
                    off.append(distance(model, sync, run, (step + 1) // EVERY, {}))
        assert replica.stats.rounds == ROUNDS
        assert replica.committed_tokens == ROUNDS * EVERY * parts * STEP_TOKENS * way["ranks"]
    return off


def whole(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A copy of each parameter, of all ranks, on the CPU."""
    names = CanonicalNames(model)
    for name, held in model.state_dict().items():
        # The whole of what one rank holds is no copy.
        value = held.full_tensor() if isinstance(held, DTensor) else held
        yield names(name), value.to("cpu", copy=True)


def distance(
    model: nn.Module, sync: str, run: str, revision: int, done: dict[str, Tensor]
) -> float:
    """The largest distance of a parameter from its published value and what was ``done`` on it."""
    values, newest = published(sync, run)
    assert newest == revision, "nobody can go on without us"
    far = [0.0]
    for name, value in whole(model):
        expected = torch.from_numpy(values[name]) + done.get(name, 0.0)
        far.append(float((value - expected).abs().max()))
    return max(far)


def main(path: Path) -> None:
    """One rank: train in all ways; rank 0 writes down how far it was."""
    from torch.distributed.fsdp import fully_shard

    job = json.loads(path.read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    off: dict[str, list[float]] = {}
    for way in job["ways"]:
        model, optimizer = TinyModel(job["seed"], 2), None
        if "prepared" in way:
            from syncline_testing.accelerated import prepared

            model, optimizer = prepared(model, way["prepared"])
        else:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        where = {"control": job["control"], "sync": job["sync"], "name": job["name"]}
        seed = job["seed"] + 100 * dist.get_rank()
        off[way["run"]] = train(model, way, **where, seed=seed, optimizer=optimizer)
    if dist.get_rank() == 0:
        path.with_suffix(".out.json").write_text(json.dumps(off))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end(0)
