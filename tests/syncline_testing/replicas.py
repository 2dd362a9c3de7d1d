"""Small models, a small loop around ``syncline.Replica``, and ways to run several of them.

``Trial`` is one replica in this process that a test moves step by step; as a program
(``python -m syncline_testing.replicas JOB``) it is one rank of a replica of several.

Models lie on the CPU, or where SYNCLINE_TEST_DEVICE says (``cuda``); there SYNCLINE_TEST_ANCHORS
says where their anchors do (``model``, or ``cpu``).
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from syncline import Replica
from syncline.interrupts import INTERRUPTED, end
from syncline.settings import checked_device
from syncline_proto.codec import Float32, decode
from syncline_proto.layout import layout_from_proto
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.warm import Program, warm_ranks

T = TypeVar("T")

DEVICE = torch.device(os.environ.get("SYNCLINE_TEST_DEVICE", "cpu"))
ANCHORS = checked_device(os.environ.get("SYNCLINE_TEST_ANCHORS", "cpu"))
if DEVICE.type != "cpu":
    torch.use_deterministic_algorithms(True)  # much is compared bit for bit
    # What a process loads with its first product takes longer than the leases of tests.
    torch.ones(8, 8, device=DEVICE, requires_grad=True).square().matmul(
        torch.ones(8, 8, device=DEVICE)
    ).sum().backward()

# Models this small gain nothing from threads, and on a busy machine threads wait for one another.
torch.set_num_threads(1)

# 23 rows do not divide by two ranks.
VOCABULARY, WIDTH, BATCH, LENGTH = 23, 16, 4, 8
STEP_TOKENS = BATCH * LENGTH

SIZE = 96
"""Examples of a dataset."""

QUICK: dict[str, Any] = {
    "sync_every": 4,
    "codec": {"up": "fp32", "down": "fp32"},
    "timeouts": {"lease": 4.0, "round_deadline": 20.0},
}
"""Settings of a run that a test can wait for."""


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(1))  # the second of two ranks holds nothing of it

    def forward(self, h: Tensor) -> Tensor:
        return h + self.scale * torch.tanh(self.up(self.norm(h)))


class TinyModel(nn.Module):
    """An embedding, some blocks and a head: 1,500 parameters that predict the next token."""

    def __init__(
        self, seed: int = 0, blocks: int = 2, tied: bool = False, width: int = WIDTH
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.to(DEVICE)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def batch(seed: int, step: int) -> Tensor:
    """int64 [BATCH, LENGTH + 1]: the same for the same seed and step, anywhere."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)


class Examples:
    """Each begins with its own number, so that a batch tells which it is of."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Tensor:
        rest = torch.arange(index, index + LENGTH - 1) % VOCABULARY
        return torch.cat([torch.tensor([index // VOCABULARY, index % VOCABULARY]), rest])


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    tokens = tokens.to(DEVICE)
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Trial:
    """A replica of one rank and its loop, moved by a test."""

    def __init__(self, cluster_url: str | None, run: str, seed: int, **how: Any) -> None:
        """``how``: for the Replica; but ``model``, and ``optimizer``, a function of parameters."""
        self.seed = seed
        self.model: TinyModel = how.pop("model", None) or TinyModel(seed)
        make = how.pop("optimizer", lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
        self.optimizer = make(self.model.parameters())
        how.setdefault("name", f"replica-{seed}")
        how.setdefault("anchor_device", ANCHORS)
        self.replica = Replica(self.model, self.optimizer, run=run, control=cluster_url, **how)

    def step(self, count: int = 1) -> Trial:
        """Make inner steps, or fewer if the replica is done."""
        for _ in range(count):
            if self.replica.done:
                break
            self.replica.count_tokens(STEP_TOKENS)
            loss = loss_of(self.model, batch(self.seed, self.replica.inner_step))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.replica.report(loss=loss.item())
        return self

    def parameters(self) -> dict[str, Tensor]:
        """A copy of the values, on the CPU."""
        return {name: p.detach().to("cpu", copy=True) for name, p in self.model.named_parameters()}


def together(*acts: Callable[[], T], limit_s: float = 60.0) -> list[T]:
    """Do all at once, each in a thread; their results, or the first error.

    ``limit_s``: for each, once those before it are done.
    """
    with ThreadPoolExecutor(len(acts)) as pool:
        futures: list[Future[T]] = [pool.submit(act) for act in acts]
        return [future.result(limit_s) for future in futures]


@contextmanager
def joined(*trials: Trial) -> Iterator[None]:
    """Start replicas at once; leave at once, or without a last push if the test fails."""
    together(*(trial.replica.start for trial in trials))
    try:
        yield
    except BaseException:
        together(*(lambda t=t: t.replica.close(failed=True) for t in trials))
        raise
    together(*(trial.replica.close for trial in trials))


def published(address: str, run: str) -> tuple[dict[str, Float32], int]:
    """Every tensor's published value, pulled whole as an observer does, and the revision."""
    with grpc.insecure_channel(address) as channel:
        stub = sync_pb2_grpc.SyncServiceStub(channel)
        opened = stub.OpenRun(pb.OpenRunRequest(run=run), timeout=10)
        layout = layout_from_proto(opened.layout)
        tensors = {t.name: np.empty(t.shape, np.float32) for t in layout.tensors}
        revisions: set[int] = set()
        for number, fragment in enumerate(layout.fragments):
            parts = list(stub.Pull(pb.PullRequest(run=run, fragment=number, newest=True)))
            header = parts[0].header
            revisions.add(header.revision)
            data = b"".join(part.chunk.data for part in parts[1:])
            flat, start = decode(data, header.codec), 0
            for box in fragment.boxes:
                where = tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))
                value = flat[start : start + box.numel].reshape(box.sizes)
                tensors[layout.tensors[box.tensor].name][where] = value
                start += box.numel
    assert len(revisions) == 1, f"not one cut: {revisions}"
    return tensors, revisions.pop()


def arrived(address: str, run: str) -> list[set[str]]:
    """For each fragment whose push is in its open round: accepted, and not yet durable."""
    return [set(state.arrived) for state in states_of(address, run)]


def phases(address: str, run: str) -> set[int]:
    """The numbers of the synchronous phases that the fragments are in, or were in last."""
    return {state.phase for state in states_of(address, run)}


def states_of(address: str, run: str) -> list[pb.FragmentState]:
    """Where each fragment stands."""
    with grpc.insecure_channel(address) as channel:
        stub = sync_pb2_grpc.SyncServiceStub(channel)
        return list(stub.GetRunStatus(pb.GetRunStatusRequest(run=run), timeout=10).fragments)


@contextmanager
def ranks(folder: Path, job: dict[str, Any], count: int) -> Iterator[list[Program]]:
    """Start a replica of several ranks as processes; none is left at the end."""
    path = folder / f"{job['name']}.json"
    path.write_text(json.dumps(job))
    logs = [folder / f"{job['name']}-{rank}.log" for rank in range(count)]
    with warm_ranks("-m", __name__, str(path), count=count, logs=logs) as processes:
        yield processes


def _probed(replica: Replica, model: nn.Module) -> tuple[float, float]:
    """The loss before and after a merge. An evaluation leaves FSDP2's root gathered in between."""
    with torch.no_grad():
        with replica.unsynced():
            own = loss_of(model, batch(0, 0)).item()
        return own, loss_of(model, batch(0, 0)).item()


def main(path: Path) -> None:
    """One rank: train as the job says, and save the whole parameters and what was counted."""
    from torch.distributed.fsdp import fully_shard

    job = json.loads(path.read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, seed = dist.get_rank(), job["seed"]
    model = TinyModel(seed, job.get("blocks", [2] * dist.get_world_size())[rank])
    if job.get("sharded", True):
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    replica = Replica(
        model,
        optimizer,
        run=job["run"],
        name=job["name"],
        settings=job["settings"],
        control=job["control"],
        anchor_device=ANCHORS,
    )
    probe: tuple[float, float] | None = None
    pace_s = job.get("pace_s", [0.0] * dist.get_world_size())[rank]
    with replica:
        if job.get("bears"):
            replica.bear_loss()
        while not path.with_name(job.get("after", path.name)).exists():
            time.sleep(0.02)
        read = replica.leased(Examples(), BATCH, seed=5) if job.get("leased") else None
        for step in range(job["steps"]):
            replica.rejoin()
            if replica.done:
                break
            if step == job["probe"]:
                probe = _probed(replica, model)
            tokens = batch(seed + 100 * rank, step) if read is None else next(read)
            if read is None:
                replica.count_tokens(STEP_TOKENS)
            loss_of(model, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pace_s)
    whole = {name: p.full_tensor().cpu().contiguous() for name, p in model.state_dict().items()}
    if rank == 0:
        save_file(whole, path.with_suffix(".safetensors"))
        counted = {
            "inner_step": replica.inner_step,
            "revision": replica.revision,
            "committed": replica.committed_tokens,
            "lives": replica.incarnation,
            "stale": replica.stats.stale,
            "rounds": replica.stats.rounds,
            "probe": probe,
        }
        path.with_suffix(".out.json").write_text(json.dumps(counted))
    dist.destroy_process_group()


def code_of(path: Path) -> int:
    """The exit code of the rank; a traceback, if any, is printed."""
    try:
        main(path)
    except BaseException as error:
        traceback.print_exc()
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    end(code_of(Path(sys.argv[1])))  # as the trainer ends, whatever became of it
