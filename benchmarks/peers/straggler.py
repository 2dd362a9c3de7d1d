"""One replica of ``stragglers.py``: trains a small language model at its own pace, way after way.

The text is a Markov chain's, so there is a loss that a model can come down to. A step lasts
``step_s``, or ``slow_s`` for the last participant: what its arithmetic leaves of that it sleeps.
Each way ends when the benchmark says so, with a file.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from peers.gate import me, place, wait_for
from syncline import Replica

VOCABULARY, WIDTH, BATCH, LENGTH = 64, 32, 8, 32
STEP_TOKENS = BATCH * LENGTH
LR = 3e-3


class Text:
    """Batches of a chain in which each token is followed by a few others, as a text has it."""

    def __init__(self, seed: int) -> None:
        chain = torch.Generator().manual_seed(0)
        logits = 3.0 * torch.randn(VOCABULARY, VOCABULARY, generator=chain)
        self._next = logits.softmax(-1)
        self._chance = torch.Generator().manual_seed(1 + seed)

    def batch(self) -> Tensor:
        """int64 [BATCH, LENGTH + 1]."""
        tokens = torch.empty(BATCH, LENGTH + 1, dtype=torch.int64)
        tokens[:, 0] = torch.randint(0, VOCABULARY, (BATCH,), generator=self._chance)
        for at in range(LENGTH):
            drawn = torch.multinomial(self._next[tokens[:, at]], 1, generator=self._chance)
            tokens[:, at + 1] = drawn[:, 0]
        return tokens


def model_of() -> nn.Module:
    """The same for everybody."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        nn.Linear(WIDTH, 4 * WIDTH),
        nn.Tanh(),
        nn.Linear(4 * WIDTH, VOCABULARY),
    )


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Diary:
    """What happened when: a line for each step, for the benchmark to read."""

    def __init__(self, folder: Path, way: str, number: int, step_s: float) -> None:
        self._path, self._step_s = folder / f"{way}-{number}", step_s
        self._stop = folder / f"{way}.stop"
        self._began = time.monotonic()
        self._file = self._path.open("w")

    @property
    def is_over(self) -> bool:
        return self._stop.exists()

    def begin(self) -> None:
        """A step begins."""
        self._began = time.monotonic()

    def end(self, steps: int, tokens: int, loss: float) -> None:
        """It ends, after what it lacks of its pace; ``tokens`` are the run's."""
        time.sleep(max(0.0, self._step_s - (time.monotonic() - self._began)))
        if math.isfinite(loss):
            self._file.write(f"{time.monotonic():.3f} {steps} {tokens} {loss:.5f}\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        self._path.with_suffix(".done").touch()


def main() -> None:
    number, count, _ = me()
    where = place()
    wait_for(where["control"])
    step_s = float(where["slow_s" if number == count - 1 else "step_s"])
    folder = Path(where["told"])
    for way, settings in json.loads(where["ways"]).items():
        diary, text = Diary(folder, way, number, step_s), Text(number)
        if settings is None:
            in_step(diary, text, where["store"], number, count)
        else:
            apart(diary, text, way, settings, where["control"], number)
        diary.close()


def apart(
    diary: Diary, text: Text, way: str, settings: dict[str, Any], control: str, number: int
) -> None:
    """As a replica of a run."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    name = f"replica-{number}"
    with Replica(
        model, optimizer, run=way, name=name, settings=settings, control=f"http://{control}"
    ) as replica:
        while not diary.is_over and not replica.done:
            diary.begin()
            replica.count_tokens(STEP_TOKENS)
            loss = stepped(model, optimizer, text, lambda: None)
            diary.end(replica.inner_step, replica.run_tokens, loss)


def in_step(diary: Diary, text: Text, store: str, number: int, count: int) -> None:
    """With everybody's gradients averaged at each step: DDP, by hand and over gloo."""
    dist.init_process_group("gloo", init_method=f"tcp://{store}", rank=number, world_size=count)
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    steps, ends = 0, False

    def average() -> None:
        nonlocal ends
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients] + [torch.tensor([float(diary.is_over)])])
        dist.all_reduce(flat)
        flat /= count
        ends = bool(flat[-1] > 0)  # all see the end at the same step
        for gradient, mean in zip(
            gradients, flat[:-1].split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))

    while not ends:
        diary.begin()
        loss = stepped(model, optimizer, text, average)
        steps += 1
        diary.end(steps, steps * count * STEP_TOKENS, loss)
    dist.destroy_process_group()


def stepped(
    model: nn.Module, optimizer: torch.optim.Optimizer, text: Text, before: Callable[[], None]
) -> float:
    """One inner step; its loss. ``before`` is done once there are gradients."""
    loss = loss_of(model, text.batch())
    loss.backward()
    before()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


if __name__ == "__main__":
    main()
