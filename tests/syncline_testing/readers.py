"""A replica of a test that reads leased data, and knows which of it it has trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import BATCH, SIZE, VOCABULARY, Examples, Trial, loss_of
from syncline_testing.waiting import wait_until


class Reader(Trial):
    """A trial that reads leased examples, and knows which it has trained on."""

    def __init__(self, *args: Any, size: int = SIZE, **how: Any) -> None:
        super().__init__(*args, tokens_of=lambda batch: batch[:, 1:].numel(), **how)
        self.read: list[int] = []
        self._size = size
        self._batches: Iterator[Tensor] | None = None

    def step(self, count: int = 1) -> Reader:
        if self._batches is None:
            self._batches = self.replica.leased(Examples(self._size), BATCH, seed=5)
        for _ in range(count):
            batch = next(self._batches, None)
            if batch is None:
                break
            self.read += [int(row[0]) * VOCABULARY + int(row[1]) for row in batch]
            loss_of(self.model, batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


def told(cluster: Cluster, run: str, trained: int) -> dict[str, Any]:
    """How the run's data stands, once so much of it was told to be trained."""
    wait_until(lambda: view(cluster, run)["trained"] >= trained, 20, f"{trained} are trained")
    return view(cluster, run)


def view(cluster: Cluster, run: str) -> dict[str, Any]:
    return cluster.get(f"/runs/{run}/data")
