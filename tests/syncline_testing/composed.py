"""A small model that trains in many ways, in a run and outside of any, step by step the same.

As a program (``python -m syncline_testing.composed JOB``) it is one rank of a replica that goes
through the ways of a job, one after another. Outside of a run it does by hand what a run of one
replica does with local-sgd in fp32, so all that it leaves must be the same, bit for bit.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from syncline import Replica
from syncline.blocks import CanonicalNames
from syncline.carrier import Carrier
from syncline.interrupts import end
from syncline.layout import RankShard, tensors_sha256, whole
from syncline.optim import AGD, WSAM, muon
from syncline.scratch import Scratch
from syncline.settings import AnchorDevice
from syncline.streamed import Streamed, carrier_of
from syncline_testing.cluster import Cluster
from syncline_testing.merged import EVERY, Rounds
from syncline_testing.poison import poisoned
from syncline_testing.replicas import (
    BATCH,
    DEVICE,
    LENGTH,
    VOCABULARY,
    WIDTH,
    batch,
    loss_of,
)
from syncline_testing.streams import Prompt
from syncline_testing.warm import warm_ranks

ROUNDS = 3
SETTINGS: dict[str, Any] = {
    "strategy": "local-sgd",
    "sync_every": EVERY,
    "codec": {"up": "fp32", "down": "fp32"},
    "timeouts": {"lease": 20.0, "round_deadline": 60.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How to train; as it stands, in a run and with nothing special."""

    inside: bool = True
    """In a run, whose name the way's is."""
    replicas: int = 1
    """Of that run."""
    hidden: int = 2 * WIDTH
    tensor_parallel: int = 1
    """Ranks that share each matrix; the others among them share it by FSDP2."""
    sequence: bool = False
    """These also share the norms' work, by positions, and nobody its sum of gradients."""
    reshard: bool | int = True
    prefetch: bool = False
    """The first block gathers the second one's parameters, too."""
    checkpoint: Literal["", "wrapper", "function", "reentrant"] = ""
    compile: str = ""
    """The backend."""
    compile_whole: bool = False
    """The model, and not each block by itself."""
    called_before: bool = False
    """In training, once before it joins."""
    bf16: bool = False
    optimizer: Literal["adamw", "agd", "muon", "wsam"] = "adamw"
    parts: int = 1
    """Micro-batches of a step."""
    sum_first: bool = False
    """Only the last of them brings gradients to the other ranks."""
    warmup: int = 0
    """Steps with everybody's mean gradient, before the first round."""
    overlap: int = 0
    """Inner steps between a push and its merge, no more than there are between two pushes."""
    mix: float | None = None
    """What is left of the parameters where a value is merged that they have trained on beside."""
    eager: bool = False
    """To train on from where its own push alone would bring it, beside a whole round of delay."""
    outer: float | None = None
    """The outer optimizer's lr and momentum, a power of two: so no product is rounded."""
    groups: int = 1
    """Of fragments, each pushed in its turn: 1, or as many as there are steps between two pushes.
    By hand 1 or 2."""
    streamed: bool = False
    """What is pushed and merged goes the way that it goes beside a GPU."""
    anchors: AnchorDevice = "cpu"
    """Where they lie."""
    down: str = "fp32"
    """The codec of what comes; by hand fp32."""
    evaluate: bool = False
    """After each push, with the replica's own parameters, so before the merge."""
    looks: bool = False
    """After each step: at all parameters, whole, once a forward pass has used them."""
    poison: Literal["", "merged", "left"] = ""
    """With NaN what FSDP2 keeps beside the shards when a fragment is merged; ``left``: secondary
    copies alone, which it is not told to drop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a way left; equal ones trained bit for bit the same."""

    losses: list[float]
    """Of rank 0, one a step."""
    parameters: str
    """SHA-256 over the whole of them."""
    graphs: int = field(compare=False, default=0)
    """That torch.compile has captured of the model."""

    @property
    def is_finite(self) -> bool:
        return all(math.isfinite(loss) for loss in self.losses)


class Block(nn.Module):
    """Two matrices for tensor parallelism to share, a norm, and a scale that few ranks hold."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.scale * self.down(torch.tanh(self.up(self.norm(h))))


class Net(nn.Module):
    """An embedding, two blocks, a norm and a head: 3,000 parameters that predict a token."""

    def __init__(self, seed: int, hidden: int = 2 * WIDTH) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(hidden) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.recomputes: Callable[..., Tensor] | None = None
        self.to(DEVICE)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for block in self.blocks:
            h = block(h) if self.recomputes is None else self.recomputes(block, h)
        return self.head(self.norm(h))


def built(way: Way, seed: int) -> nn.Module:
    """The model as the way has it; on all ranks of the process group, where there is one."""
    model = Net(seed, way.hidden)
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks > 1:
        shape = (ranks // way.tensor_parallel, way.tensor_parallel)
        mesh = init_device_mesh(DEVICE.type, shape, mesh_dim_names=("data", "tensor"))
        if way.tensor_parallel > 1:
            for block in model.blocks:
                _parallel(block, way, mesh["tensor"])
        _recomputed(model, way)
        if shape[0] > 1:
            _sharded(model, way, mesh["data"])
    else:
        _recomputed(model, way)
    if way.compile:
        for module in (model,) if way.compile_whole else model.blocks:
            module.compile(backend=way.compile)
    return model


def _parallel(block: nn.Module, way: Way, mesh: DeviceMesh) -> None:
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if way.sequence:
        split = {"input_layouts": Replicate(), "desired_input_layouts": Shard(1)}
        parallelize_module(block, mesh, {"norm": PrepareModuleInput(**split)})
        plan |= {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1))}
    parallelize_module(block, mesh, plan)


def _recomputed(model: Net, way: Way) -> None:
    if way.checkpoint == "wrapper":
        for number, block in enumerate(model.blocks):
            model.blocks[number] = checkpoint_wrapper(block)
    elif way.checkpoint:
        is_reentrant = way.checkpoint == "reentrant"
        model.recomputes = lambda block, h: checkpoint(block, h, use_reentrant=is_reentrant)


def _sharded(model: Net, way: Way, mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy()
    if way.bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=way.reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=way.reshard)
    if way.prefetch:
        first, second = model.blocks
        assert isinstance(first, FSDPModule) and isinstance(second, FSDPModule)
        first.set_modules_to_forward_prefetch([second])


def beside(ways: dict[str, Way]) -> dict[str, Way]:
    """Each of these, and the same outside of any run (``NAME.by-hand``).

    Nothing is looked at between two steps there: nobody would drop the copies that it leaves.
    """
    plain: dict[str, Any] = {"inside": False, "evaluate": False, "poison": ""}
    outside = {f"{name}.by-hand": replace(way, **plain) for name, way in ways.items()}
    return ways | outside


def train(way: Way, run: str, control: str, name: str = "wide", seed: int = 3) -> Trace:
    """Train all rounds."""
    torch.compiler.reset()
    counters.clear()
    model = built(way, seed)
    if way.called_before:
        loss_of(model, batch(0, 0)).backward()
        model.zero_grad()
    optimizer = _optimizer(model, way)
    if not way.inside:
        return _trace(_steps(model, optimizer, way, seed), model)
    more: dict[str, Any] = {"warmup_steps": way.warmup, "overlap_steps": way.overlap}
    more |= {"overlap_mix": way.mix, "overlap_eager": way.eager, "fragment_groups": way.groups}
    if way.outer is not None:
        more["outer"] = {"lr": way.outer, "momentum": way.outer}
    more["codec"] = SETTINGS["codec"] | {"down": way.down}
    settings = SETTINGS | {"min_replicas": way.replicas} | more
    member: dict[str, Any] = {"run": run, "name": name, "control": control}
    replica = Replica(model, optimizer, **member, settings=settings, anchor_device=way.anchors)
    with patch("syncline.life.carrier_of", streamed) if way.streamed else nullcontext(), replica:
        losses = _steps(model, optimizer, way, seed, replica)
        assert replica.revision == ROUNDS
    return _trace(losses, model)


def streamed(shards: Iterable[RankShard], anchors: AnchorDevice) -> Carrier:
    """Beside a device that has always done what it was told; beside a real one its own way."""
    if DEVICE.type != "cpu":
        return carrier_of(shards, anchors)
    return Streamed(Scratch(), torch.device("cpu"), Prompt(), anchors == "model")


def _trace(losses: list[float], model: nn.Module) -> Trace:
    graphs = counters["stats"]["unique_graphs"]
    return Trace(losses=losses, parameters=_hash(model), graphs=graphs)


def _optimizer(model: nn.Module, way: Way) -> torch.optim.Optimizer:
    if way.optimizer == "agd":
        return AGD(model.parameters(), lr=1e-2, delta=1e-4)
    if way.optimizer == "muon":
        return muon(model, lr=1e-2)
    if way.optimizer == "wsam":
        return WSAM(torch.optim.SGD(model.parameters(), lr=0.2), rho=0.2, adaptive=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def _steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    way: Way,
    seed: int,
    replica: Replica | None = None,
) -> list[float]:
    losses: list[float] = []
    rank = dist.get_rank() if dist.is_initialized() else 0
    data, tensor = divmod(rank, way.tensor_parallel)
    rounds = Rounds(model, way) if replica is None else None
    unsynced = nullcontext if replica is None else replica.unsynced
    for step in range(ROUNDS * EVERY):
        for part in range(way.parts):
            if way.sum_first and isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(part + 1 == way.parts)
            if replica is not None and not tensor:  # all who share the matrices have one batch
                replica.count_tokens(BATCH * LENGTH)
            loss = loss_of(model, batch(seed + 100 * data + 1000 * part, step))
            (loss / way.parts).backward()
            losses.append(loss.item())
        if isinstance(optimizer, WSAM):
            optimizer.perturb()
            loss_of(model, batch(seed + 100 * data, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if way.looks or (way.evaluate and (step + 1) % EVERY == 0):
            with unsynced(), torch.no_grad():
                loss_of(model, batch(0, 0))
        if way.looks:
            assert all(whole(parameter).isfinite().all() for parameter in model.parameters())
        if rounds is not None:
            rounds.after(step)
    if rounds is not None:
        rounds.end()
    if replica is not None:
        replica.finish()
    return losses


def _hash(model: nn.Module) -> str:
    names = CanonicalNames(model)
    return tensors_sha256({names(raw): p for raw, p in model.named_parameters()})


def in_ranks(
    folder: Path, cluster: Cluster, count: int, ways: dict[str, Way], limit_s: float = 100.0
) -> dict[str, Trace]:
    """Train in all ways, by name, as a replica of so many ranks."""
    path = folder / f"composed-{count}.json"
    told = {name: asdict(way) for name, way in ways.items()}
    job = {"control": cluster.control_url, "name": f"wide-{count}", "ways": told}
    path.write_text(json.dumps(job))
    logs = [folder / f"composed-{count}-{rank}.log" for rank in range(count)]
    program = ("-m", __name__, str(path))
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
    with warm_ranks(*program, count=count, logs=logs, **own) as processes:
        codes = [process.wait(limit_s) for process in processes]
    assert codes == [0] * count, "\n".join(log.read_text() for log in logs)
    left = json.loads(path.with_suffix(".out.json").read_text())
    return {name: Trace(**trace) for name, trace in left.items()}


def main(path: Path) -> None:
    """One rank: train in all ways; rank 0 writes down what each left."""
    job = json.loads(path.read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    left: dict[str, Any] = {}
    for name, told in job["ways"].items():
        way = Way(**told)
        with poisoned(way.poison, has_copies=not isinstance(way.reshard, bool)):
            left[name] = asdict(train(way, name, job["control"], job["name"]))
    if dist.get_rank() == 0:
        path.with_suffix(".out.json").write_text(json.dumps(left))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end(0)
