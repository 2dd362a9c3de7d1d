"""One rank of a training that notes what it computes in and what it holds.

``probed`` trains in this process; as a program (``python probe.py JOB.toml...``) it trains one
job after the other among the ranks that the environment names, and rank 0 prints the notes.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from syncline.blocks import blocks_in
from syncline.train.config import JobConfig
from syncline.train.logs import configure_logs
from syncline.train.loop import Trainer
from syncline.train.ranks import RankGroup, joined_ranks
from syncline_testing.training import Recorder


def probed(job: JobConfig, ranks: RankGroup) -> dict[str, Any]:
    """Train; the dtypes of the first block's work and of what outlives a step, and the losses.

    ``sharers`` tells among how many ranks that block's parameters were cut between forward and
    backward.
    """
    recorder = Recorder()
    trainer = Trainer(job, ranks, recorder)
    found = blocks_in(trainer.model)
    assert found is not None
    linear = found[1][0].get_submodule("self_attn.q_proj")
    notes: dict[str, set[Any]] = {key: set() for key in ("computed", "sharers", "gradients")}
    linear.register_forward_hook(
        lambda _, given, out: notes["computed"].update({str(given[0].dtype), str(out.dtype)})
    )

    def after_forward(*_: Any) -> None:
        if trainer.model.training:
            notes["sharers"].add(sharers(linear.weight))

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        held = (p for group in optimizer.param_groups for p in group["params"])
        notes["gradients"].update(str(p.grad.dtype) for p in held)

    trainer.model.register_forward_hook(after_forward)
    trainer.optimizer.register_step_pre_hook(before_step)
    trainer.run()
    state = trainer.optimizer.state.values()
    return {
        **{key: sorted(values) for key, values in notes.items()},
        "parameters": sorted({str(p.dtype) for p in trainer.model.parameters()}),
        "moments": sorted({str(one["exp_avg"].dtype) for one in state}),
        "losses": recorder.losses,
    }


def sharers(weight: object) -> int:
    """Among how many ranks it is cut."""
    if not isinstance(weight, DTensor):
        return 1
    sizes = zip(weight.placements, weight.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in sizes if placement.is_shard())


if __name__ == "__main__":
    jobs = [JobConfig.load(path) for path in sys.argv[1:]]
    configure_logs()
    with joined_ranks(mixed_precision=True) as ranks:
        told = [probed(job, ranks) for job in jobs]
        if ranks.first:
            sys.stdout.write(json.dumps(told))
