"""What Syncline costs a training between two rounds: the time in its hooks, and of whole steps.

A Llama of some 7 million parameters trains on made-up tokens, once with a replica of a real run
around it and once without: a block of steps each in turn, in one process, with the same threads. No
round falls into what is measured. The last line is one line of JSON:

    {"hook_share", "step_ratio", "steps", "step_s", "device"}

`hook_share` is the time inside Syncline's hooks over the time of the steps that have them.
`step_ratio` is the median, over neighbouring blocks, of the time of a step with Syncline over that
of one without. `step_s` is the median without, in seconds.

    python benchmarks/overhead.py [--steps 200] [--device cpu|cuda]

With 200 steps or more `hook_share` must be 0.02 at most; a sentence and exit code 1 say so if it is
not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

from asked import at_least
from services import Cluster
from syncline import Replica
from syncline.hooks import Hooks

SHARE_MAX = 0.02
STEPS_MIN = 200
BLOCK = 10
"""Steps of one kind in a row."""
BATCH, LENGTH, VOCABULARY = 4, 128, 1024
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=8,
    num_attention_heads=4,
    max_position_embeddings=LENGTH,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time in Syncline's hooks between rounds, and of steps with it and without.",
        epilog="example: python benchmarks/overhead.py --steps 400",
    )
    parser.add_argument("--steps", type=at_least(BLOCK), default=STEPS_MIN, help="of each kind")
    parser.add_argument("--device", choices=["cpu", "cuda"], default=_device())
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this PyTorch sees no GPU.")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        result = measured(cluster.control_url, given.steps, given.device)
    print(json.dumps(result))
    if given.steps >= STEPS_MIN and not result["hook_share"] <= SHARE_MAX:
        sys.exit(f"hook_share is {result['hook_share']:.3f}, over {SHARE_MAX}.")


def measured(control: str, steps: int, device: str) -> dict[str, Any]:
    """Train both in turn; the figures."""
    clock = _Clock()
    clock.watch()
    bare, ours = Loop(device), Loop(device)
    blocks = -(-steps // BLOCK)
    settings = {"sync_every": (blocks + 2) * BLOCK, "strategy": "local-sgd"}
    with Replica(ours.model, ours.optimizer, run="overhead", control=control, settings=settings):
        for loop in (bare, ours):
            loop.block()
        clock.seconds = 0.0
        pairs = [(bare.block(), ours.block()) for _ in range(blocks)]
        in_hooks = clock.seconds
    return {
        "hook_share": in_hooks / sum(with_it for _, with_it in pairs),
        "step_ratio": statistics.median(with_it / without for without, with_it in pairs),
        "steps": blocks * BLOCK,
        "step_s": statistics.median(without for without, _ in pairs) / BLOCK,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }


class Loop:
    """A model in training."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self._device = device
        self.model = cast(nn.Module, LlamaForCausalLM(CONFIG)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)

    def block(self) -> float:
        """Train ``BLOCK`` steps; the seconds that they took."""
        began = self._now()
        for _ in range(BLOCK):
            self.model(input_ids=self._tokens, labels=self._tokens).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self._now() - began

    def _now(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class _Clock:
    """Adds up what every call of every hook takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self) -> None:
        """Stand between all hooks that are installed from now on and what they call."""
        install = Hooks.install

        def timed(
            hooks: Hooks,
            optimizer: Optimizer,
            before_forward: Callable[[Iterable[int]], None],
            before_step: Callable[[], None],
            after_step: Callable[[], None],
        ) -> None:
            install(
                hooks,
                optimizer,
                self._timed(before_forward),
                self._timed(before_step),
                self._timed(after_step),
            )

        setattr(Hooks, "install", timed)  # noqa: B010  (pyright would have its very parameters)

    def _timed(self, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any) -> None:
            began = time.perf_counter()
            try:
                call(*args)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    main()
