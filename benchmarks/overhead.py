"""What Syncline costs a training between two rounds: all its time there, and that of whole steps.

A Llama of some 7 million parameters trains on made-up tokens, once as docs/examples/loop.py does,
in a real run, and once by the same loop without Syncline: a block of steps each in turn, in one
process, with the same threads. No round falls into what is measured. On a GPU such steps are over
before they are told; there it is one of some 90 million, in bf16 (``--model``). The last line is
one line of JSON:

    {"hook_share", "step_ratio", "parts", "steps", "step_s", "model", "ranks", "device", "care"}

`hook_share` is all the time that Syncline takes of the thread that trains (its hooks, and what the
loop calls: the next batch, less what the other loop's takes, `skips`, `synchronize`, `report`) over
the time of the steps that have it; `parts` says how much of it each takes. `step_ratio` is the
median, over neighbouring blocks, of the time of a step with Syncline over that of one without.
`step_s` is the median without, in seconds. With `--care` a second replica takes its turns beside
both, in a run of its own, by the same loop without a line for `skips`, as it is made with
`takes_care`: `care` then has its `hook_share`, `step_ratio` and `parts`, else null. The callbacks
of libraries are not measured.

    python benchmarks/overhead.py [--steps 200] [--ranks 1] [--device cpu|cuda]
        [--model small|large] [--care]

With several ranks FSDP2 shares the model among them over gloo, on this machine's CPU; theirs is the
share of the rank where it is largest, with its waiting for the others. With 200 steps or more of
one rank each `hook_share` must be 0.02 at most; a sentence and exit code 1 say so if it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from asked import at_least
from interrupted import interruptible
from services import Cluster
from syncline import Replica
from syncline.launch import ranks as rank_runner
from taken import Clock

SHARE_MAX = 0.02
STEPS_MIN = 200
BLOCK = 10
"""Steps of one kind in a row."""
VOCABULARY, EXAMPLES, DIFFERENT = 1024, 1 << 20, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A Llama and what it trains on in a step."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    batch: int
    length: int
    """Tokens of a sequence."""
    bf16: bool = False
    """By autocast."""

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.length,
        )


SMALL = Size(hidden=256, intermediate=704, layers=8, heads=4, batch=4, length=128)
LARGE = Size(hidden=768, intermediate=2048, layers=12, heads=12, batch=32, length=512, bf16=True)
SIZES = {"small": SMALL, "large": LARGE}


@interruptible()  # else a replica, in this process, would take SIGTERM as a wish to leave
def main() -> None:
    given = asked(sys.argv[1:])
    if given.control:
        return tell_as_rank(given)
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        url = cluster.control_url
        if given.ranks > 1:
            sys.exit(in_ranks(url, given))
        result = measured(url, given.steps, given.device, given.care, given.model)
    print(json.dumps(result))
    sys.exit(shortfall(result))


def asked(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time that Syncline takes between rounds, and of steps with it and without.",
        epilog="example: python benchmarks/overhead.py --ranks 2",
    )
    parser.add_argument("--steps", type=at_least(BLOCK), default=STEPS_MIN, help="of each kind")
    parser.add_argument("--ranks", type=at_least(1), default=1, help="that share the model")
    parser.add_argument("--device", choices=["cpu", "cuda"], default=None)
    parser.add_argument("--model", choices=SIZES, help="small on a CPU, large on a GPU by default")
    parser.add_argument("--care", action="store_true", help="with takes_care beside, too")
    parser.add_argument("--control", help=argparse.SUPPRESS)  # of a rank, which starts no services
    given = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    given.device = given.device or ("cuda" if has_gpu and given.ranks == 1 else "cpu")
    given.model = given.model or ("large" if given.device == "cuda" else "small")
    if given.device == "cuda" and not has_gpu:
        parser.error("--device cuda: this PyTorch sees no GPU.")
    if given.device == "cuda" and given.ranks > 1:
        parser.error("--ranks: several are measured on the CPU, over gloo.")
    return given


def shortfall(result: dict[str, Any]) -> str | None:
    """Why the figures are not good enough, if they are not; of fewer steps nothing is asked."""
    counts = result["steps"] >= STEPS_MIN and result["ranks"] == 1
    for name, one in {"hook_share": result, "care's hook_share": result["care"]}.items():
        if counts and one is not None and not one["hook_share"] <= SHARE_MAX:
            return f"{name} is {one['hook_share']:.3f}, over {SHARE_MAX}."
    return None


def in_ranks(control: str, given: argparse.Namespace) -> int:
    """Run this program once for each rank, of which the first tells; how that ended."""
    own = [__file__, "--steps", str(given.steps), "--model", given.model, "--control", control]
    own += ["--care"] if given.care else []
    runner = [sys.executable, "-I", rank_runner.__file__, str(given.ranks)]
    threads = str(max(1, (os.cpu_count() or 1) // given.ranks))
    return subprocess.run(
        [*runner, sys.executable, *own], env=os.environ | {"OMP_NUM_THREADS": threads}
    ).returncode


def tell_as_rank(given: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    result = measured(given.control, given.steps, "cpu", given.care, given.model)
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


def measured(
    control: str, steps: int, device: str, care: bool = False, model: str = "small"
) -> dict[str, Any]:
    """Train all in turn; the figures, the same on all ranks."""
    size = SIZES[model]
    bare = Loop(size, device)
    bare.read(again_and_again(DataLoader(MadeUp(size), size.batch)))
    blocks = -(-steps // BLOCK)
    settings = {"sync_every": (blocks + 2) * BLOCK, "strategy": "local-sgd"}
    how: dict[str, Any] = {"control": control, "settings": settings}
    with ExitStack() as running:
        plain = followed(size, device, takes_care=False, run="overhead", **how)
        ours = [running.enter_context(plain)]
        if care:
            more = followed(size, device, takes_care=True, run="overhead-care", **how)
            ours.append(running.enter_context(more))
        for loop in (bare, *ours):
            loop.block()
            loop.clock.seconds.clear()
        turns = [[loop.block() for loop in (bare, *ours)] for _ in range(blocks)]
        # Before they leave, which is a round.
        told = [cost(loop, bare, turns, number) for number, loop in enumerate(ours, 1)]
    return told[0] | {
        "steps": blocks * BLOCK,
        "step_s": statistics.median(turn[0] for turn in turns) / BLOCK,
        "model": model,
        "ranks": dist.get_world_size() if dist.is_initialized() else 1,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "care": told[1] if care else None,
    }


def cost(loop: Loop, bare: Loop, turns: list[list[float]], number: int) -> dict[str, Any]:
    """Of one replica, whose blocks are those with this number; the first were without."""
    whole = sum(turn[number] for turn in turns)
    taken = loop.clock.seconds
    taken["batch"] -= bare.clock.seconds["batch"]
    return {
        "hook_share": largest(sum(taken.values()) / whole),
        "step_ratio": statistics.median(turn[number] / turn[0] for turn in turns),
        "parts": {name: seconds / whole for name, seconds in taken.items()},
    }


@contextmanager
def followed(size: Size, device: str, *, takes_care: bool, **how: Any) -> Iterator[Loop]:
    """A loop that is a replica of a run, inside."""
    loop, clock = Loop(size, device), Clock(device)
    replica = Replica(loop.model, loop.optimizer, takes_care=takes_care, **how)
    with ExitStack() as hooks:
        if takes_care:
            clock.before_care(loop)
        with clock.watching():
            hooks.enter_context(replica)
        if takes_care:
            clock.after_care(loop)
        loop.follow(replica, clock, takes_care)
        yield loop


def largest(share: float) -> float:
    """Of all ranks."""
    if not dist.is_initialized():
        return share
    shares = torch.tensor(share, dtype=torch.float64)
    dist.all_reduce(shares, dist.ReduceOp.MAX)
    return shares.item()


class MadeUp(Dataset[dict[str, Tensor]]):
    """Examples, of which there are so many that none is read twice."""

    def __init__(self, size: Size) -> None:
        dice = torch.Generator().manual_seed(0)
        self._rows = torch.randint(VOCABULARY, (DIFFERENT, size.length), generator=dice)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self._rows[index % DIFFERENT]
        return {"input_ids": row, "labels": row}


def again_and_again(loader: DataLoader[Any]) -> Iterator[Any]:
    """Its batches, each made when it is asked for."""
    while True:
        yield from loader


class Loop:
    """A model in training: by itself, or as a replica of a run."""

    def __init__(self, size: Size, device: str) -> None:
        torch.manual_seed(0)
        self._size, self._device = size, device
        self.model = cast(nn.Module, LlamaForCausalLM(size.config())).to(device)
        if dist.is_initialized():
            for layer in cast(Any, self.model).model.layers:
                fully_shard(layer)
            fully_shard(self.model)
        fused = True if device == "cuda" else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        self._replica: Replica | None = None
        self._takes_care = False
        self.clock = Clock(device)

    def read(self, batches: Iterator[Any]) -> None:
        self._next = self.clock.timed("batch", lambda: next(batches))

    def follow(self, replica: Replica, clock: Clock, takes_care: bool) -> None:
        """Be this replica, whose time the clock takes."""
        self._replica, self.clock, self._takes_care = replica, clock, takes_care
        self.read(iter(replica.leased(MadeUp(self._size), batch_size=self._size.batch)))

    def block(self) -> float:
        """Train ``BLOCK`` steps; the seconds that they took."""
        began = self.clock.now()
        for _ in range(BLOCK):
            self._step()
        return self.clock.now() - began

    def _step(self) -> None:
        replica, timed = self._replica, self.clock.timed
        batch = {key: rows.to(self._device) for key, rows in self._next().items()}
        with torch.autocast(self._device, torch.bfloat16, enabled=self._size.bf16):
            loss = self.model(**batch).loss
        loss.backward()
        if replica is not None:
            if not self._takes_care and timed("skips", replica.skips)(loss):
                raise AssertionError("made-up tokens have a finite loss")
            timed("synchronize", replica.synchronize)()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if replica is not None:
            timed("report", replica.report)(loss=loss)


if __name__ == "__main__":
    main()
