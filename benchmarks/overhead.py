"""What Syncline costs a training between two rounds: all its time there, and that of whole steps.

A Llama of some 7 million parameters trains on made-up tokens, once as docs/examples/loop.py does,
in a real run, and once by the same loop without Syncline: a block of steps each in turn, in one
process, with the same threads. No round falls into what is measured. The last line is one line of
JSON:

    {"hook_share", "step_ratio", "parts", "steps", "step_s", "ranks", "device", "care"}

`hook_share` is all the time that Syncline takes of the thread that trains (its hooks, and what the
loop calls: the next batch, `skips`, `synchronize`, `report`) over the time of the steps that have
it; `parts` says how much of it each takes. `step_ratio` is the median, over neighbouring blocks, of
the time of a step with Syncline over that of one without. `step_s` is the median without, in
seconds. With `--care` a second replica takes its turns beside both, in a run of its own, by the
same loop without a line for `skips`, as it is made with `takes_care`: `care` then has its
`hook_share`, `step_ratio` and `parts`, else null. The callbacks of libraries are not measured.

    python benchmarks/overhead.py [--steps 200] [--ranks 1] [--device cpu|cuda] [--care]

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
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from asked import at_least
from services import Cluster
from syncline import Replica
from syncline.hooks import Hooks
from syncline.launch import ranks as rank_runner

SHARE_MAX = 0.02
STEPS_MIN = 200
BLOCK = 10
"""Steps of one kind in a row."""
BATCH, LENGTH, VOCABULARY, EXAMPLES = 4, 128, 1024, 512
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=8,
    num_attention_heads=4,
    max_position_embeddings=LENGTH,
)


def main() -> None:
    given = asked(sys.argv[1:])
    if given.control:
        return tell_as_rank(given)
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        if given.ranks > 1:
            sys.exit(in_ranks(cluster.control_url, given))
        result = measured(cluster.control_url, given.steps, given.device, given.care)
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
    parser.add_argument("--care", action="store_true", help="with takes_care beside, too")
    parser.add_argument("--control", help=argparse.SUPPRESS)  # of a rank, which starts no services
    given = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    given.device = given.device or ("cuda" if has_gpu and given.ranks == 1 else "cpu")
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
    own = [__file__, "--steps", str(given.steps), "--control", control]
    own += ["--care"] if given.care else []
    runner = [sys.executable, "-I", rank_runner.__file__, str(given.ranks)]
    threads = str(max(1, (os.cpu_count() or 1) // given.ranks))
    return subprocess.run(
        [*runner, sys.executable, *own], env=os.environ | {"OMP_NUM_THREADS": threads}
    ).returncode


def tell_as_rank(given: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    result = measured(given.control, given.steps, "cpu", given.care)
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


def measured(control: str, steps: int, device: str, care: bool = False) -> dict[str, Any]:
    """Train all in turn; the figures, the same on all ranks."""
    bare = Loop(device)
    bare.read(cycle(DataLoader(cast(Any, examples()), BATCH)))
    blocks = -(-steps // BLOCK)
    settings = {"sync_every": (blocks + 2) * BLOCK, "strategy": "local-sgd"}
    how: dict[str, Any] = {"control": control, "settings": settings}
    with ExitStack() as running:
        ours = [running.enter_context(followed(device, takes_care=False, run="overhead", **how))]
        if care:
            more = followed(device, takes_care=True, run="overhead-care", **how)
            ours.append(running.enter_context(more))
        for loop in (bare, *ours):
            loop.block()
            loop.clock.seconds.clear()
        turns = [[loop.block() for loop in (bare, *ours)] for _ in range(blocks)]
        # Before they leave, which is a round.
        told = [cost(loop, turns, number) for number, loop in enumerate(ours, 1)]
    return told[0] | {
        "steps": blocks * BLOCK,
        "step_s": statistics.median(turn[0] for turn in turns) / BLOCK,
        "ranks": dist.get_world_size() if dist.is_initialized() else 1,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "care": told[1] if care else None,
    }


def cost(loop: Loop, turns: list[list[float]], number: int) -> dict[str, Any]:
    """Of one replica, whose blocks are those with this number; the first were without."""
    whole = sum(turn[number] for turn in turns)
    taken = loop.clock.seconds
    return {
        "hook_share": largest(sum(taken.values()) / whole),
        "step_ratio": statistics.median(turn[number] / turn[0] for turn in turns),
        "parts": {name: seconds / whole for name, seconds in taken.items()},
    }


@contextmanager
def followed(device: str, *, takes_care: bool, **how: Any) -> Iterator[Loop]:
    """A loop that is a replica of a run, inside."""
    loop, clock = Loop(device), Clock(device)
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


def examples() -> list[dict[str, Tensor]]:
    rows = torch.randint(VOCABULARY, (EXAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in rows]


class Loop:
    """A model in training: by itself, or as a replica of a run."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self._device = device
        self.model = cast(nn.Module, LlamaForCausalLM(CONFIG)).to(device)
        if dist.is_initialized():
            for layer in cast(Any, self.model).model.layers:
                fully_shard(layer)
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._batches: Iterator[Any] = iter(())
        self._replica: Replica | None = None
        self._takes_care = False
        self.clock = Clock(device)

    def read(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def follow(self, replica: Replica, clock: Clock, takes_care: bool) -> None:
        """Be this replica, whose time the clock takes."""
        self._replica, self.clock, self._takes_care = replica, clock, takes_care
        read = iter(replica.leased(cast(Any, examples()), batch_size=BATCH))
        self.read(iter(lambda: clock.timed("batch", next)(read), None))

    def block(self) -> float:
        """Train ``BLOCK`` steps; the seconds that they took."""
        began = self.clock.now()
        for _ in range(BLOCK):
            self._step()
        return self.clock.now() - began

    def _step(self) -> None:
        replica, timed = self._replica, self.clock.timed
        batch = {key: rows.to(self._device) for key, rows in next(self._batches).items()}
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


class Clock:
    """Adds up what Syncline takes of the thread that trains, by what was called.

    What looks at a loss or a gradient waits on a GPU for what that has been told before. So does
    the clock ahead of it, since that is the training's own time: what it costs that the GPU is then
    told nothing for a while is in `step_ratio`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._began = 0.0

    def now(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **how: Any) -> Any:
            began = time.perf_counter() if name == "hooks" else self.now()
            try:
                return call(*args, **how)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return timed

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, stand between all hooks that are installed and what they call."""
        install = Hooks.install

        def watched(
            hooks: Hooks,
            optimizer: Optimizer,
            before_forward: Callable[[Iterable[int]], None],
            before_step: Callable[[], None],
            after_step: Callable[[], None],
        ) -> None:
            callbacks = (before_forward, before_step, after_step)
            install(hooks, optimizer, *(self.timed("hooks", one) for one in callbacks))

        setattr(Hooks, "install", watched)  # noqa: B010  (pyright would have its very parameters)
        try:
            yield
        finally:
            setattr(Hooks, "install", install)  # noqa: B010

    def before_care(self, loop: Loop) -> None:
        """Ahead of the hooks with which a replica takes care: its time begins with these."""
        self._register(loop, self._care_begins)

    def after_care(self, loop: Loop) -> None:
        """Behind them."""
        self._register(loop, self._care_ends)

    def _register(self, loop: Loop, act: Callable[..., None]) -> None:
        loop.model.register_forward_hook(act)
        for register in (
            loop.optimizer.register_step_pre_hook,
            loop.optimizer.register_step_post_hook,
        ):
            register(act)

    def _care_begins(self, what: nn.Module | Optimizer, *_: Any) -> None:
        # What it does behind a forward pass looks at no value.
        now = self.now() if isinstance(what, Optimizer) else time.perf_counter()
        self._began = now - self.seconds["hooks"]

    def _care_ends(self, *_: Any) -> None:
        # The replica's other hooks lie between; they have had their time by themselves.
        self.seconds["care"] += time.perf_counter() - self.seconds["hooks"] - self._began


if __name__ == "__main__":
    main()
