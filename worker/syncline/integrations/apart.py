"""Replicas that read one order of the data, each beginning at another place of it.

The loops of others own their loaders and the length of an epoch, so nobody can take batches out of
them. Moved round by its share of the epoch, each replica's order is as long as before; and where
all have one order (one seed shuffles it), until together they have read one epoch, no two read the
same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, Sampler


class Apart(Sampler[Any]):
    """Another sampler's order, from the place of one of ``count`` replicas on and round."""

    def __init__(self, order: Any, index: int, count: int) -> None:
        self.order = order
        self._index, self._count = index, count

    def __iter__(self) -> Iterator[Any]:
        order = _kept(islice(self.order, len(self.order)))
        start = len(order) * self._index // self._count
        yield from islice(order, start, None)
        yield from islice(order, start)

    def __len__(self) -> int:
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        tell = getattr(self.order, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def _kept(order: Iterable[Any]) -> Sequence[Any]:
    """A whole pass; numbers of rows, of which there may be very many, in eight bytes each."""
    items = iter(order)
    first = list(islice(items, 1))
    every = chain(first, items)
    return array("q", every) if first and isinstance(first[0], int) else list(every)


def begin_apart(loader: Any, index: int, count: int) -> bool:
    """Let a loader's next pass begin at the place of replica ``index`` of ``count``.

    Returns False where the loader has no order that is known beforehand and ends, as of a stream.
    """
    batches = getattr(loader, "batch_sampler", None)
    while isinstance(inner := getattr(batches, "batch_sampler", None), BatchSampler):
        batches = inner  # around it is Accelerate's, which deals among ranks
    order = getattr(batches, "sampler", None)
    is_endless = not hasattr(order, "__len__")
    if is_endless or isinstance(getattr(loader, "dataset", None), IterableDataset):
        return False
    if isinstance(order, Apart):
        order = order.order  # of an earlier training
    batches.sampler = Apart(order, index, count)  # pyright: ignore[reportOptionalMemberAccess]
    return True
