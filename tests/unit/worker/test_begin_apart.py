"""Replicas in the loops of others read one order, each from another place on."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from itertools import chain

import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from syncline.integrations.apart import Apart, begin_apart

Numbers = DataLoader[int]


def loader_of(count: int, batch: int = 1) -> Numbers:
    order = torch.Generator().manual_seed(3)
    return DataLoader(range(count), batch, shuffle=True, generator=order)  # pyright: ignore[reportArgumentType]


def read(loader: Numbers) -> list[int]:
    return list(chain.from_iterable(batch.tolist() for batch in loader))


@given(count=st.integers(1, 40), replicas=st.integers(1, 5))
def test_by_the_time_that_an_epoch_is_read_nobody_has_read_what_another_has(
    count: int, replicas: int
) -> None:
    each = count // replicas
    seen: list[int] = []
    for index in range(replicas):
        order = list(Apart(range(count), index, replicas))
        assert sorted(order) == list(range(count)), "it is a whole epoch for each"
        seen += order[:each]
    assert len(set(seen)) == len(seen)


def test_what_is_no_number_is_kept_as_it_is() -> None:
    assert list(Apart("abcde", 1, 2)) == ["c", "d", "e", "a", "b"]
    assert list(Apart([], 1, 2)) == []


def test_numbers_of_rows_take_eight_bytes_each() -> None:
    """Python's own take four times that, for as long as the epoch is read."""
    rows = 50_000
    tracemalloc.start()
    try:
        order = iter(Apart(range(1_000, 1_000 + rows), 1, 2))
        assert next(order) == 1_000 + rows // 2
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 16 * rows


def test_a_loader_is_as_long_as_before_and_the_first_replica_reads_as_before() -> None:
    plain = read(loader_of(10, 3))
    for index, expected in ((0, plain), (1, plain[5:] + plain[:5])):
        loader = loader_of(10, 3)
        assert begin_apart(loader, index, 2)
        assert len(loader) == 4 and read(loader) == expected


def test_a_later_training_moves_it_anew() -> None:
    loader = loader_of(10)
    assert begin_apart(loader, 1, 2) and begin_apart(loader, 0, 2)
    assert read(loader) == read(loader_of(10))


def test_what_is_dealt_among_ranks_already_is_read_from_another_place_on() -> None:
    """As Lightning deals it; an epoch is read before anybody reads what another has."""
    seen: list[int] = []
    for replica in range(2):
        for rank in range(2):
            own: Sampler[int] = DistributedSampler(range(16), 2, rank, seed=3)  # pyright: ignore[reportArgumentType]
            loader: Numbers = DataLoader(range(16), 2, sampler=own)  # pyright: ignore[reportArgumentType]
            assert begin_apart(loader, replica, 2)
            seen += read(loader)[:4]
    assert sorted(seen) == list(range(16))


def test_ranks_deal_what_their_replica_reads() -> None:
    inner = BatchSampler(range(8), 1, drop_last=False)
    shards = [BatchSamplerShard(inner, num_processes=2, process_index=rank) for rank in (0, 1)]
    loader: Numbers = DataLoader(range(8), batch_sampler=shards[1])  # pyright: ignore[reportArgumentType]
    assert begin_apart(loader, 1, 2)
    assert list(shards[0]) == [[4], [6], [0], [2]] and read(loader) == [5, 7, 1, 3]


def test_the_epoch_reaches_who_shuffles_by_it() -> None:
    class ByEpoch(Sampler[int]):
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            return iter([self.epoch] * 3)

        def __len__(self) -> int:
            return 3

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    apart = Apart(ByEpoch(), 1, 2)
    apart.set_epoch(2)
    assert list(apart) == [2, 2, 2] and len(apart) == 3
    Apart(range(3), 0, 1).set_epoch(1)  # which knows nothing of epochs


def test_a_stream_has_no_order_to_begin_in() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    class Endless(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    class TooLong(Endless):
        def __len__(self) -> int:
            return 4

    assert not begin_apart(DataLoader(Stream()), 1, 2)
    assert not begin_apart(DataLoader(range(9), sampler=Endless()), 1, 2)  # pyright: ignore[reportArgumentType]
    assert list(Apart(TooLong(), 1, 2)) == [2, 3, 0, 1]
    assert not begin_apart(DataLoader(range(3), batch_size=None), 1, 2)  # pyright: ignore[reportArgumentType]
    assert not begin_apart([1, 2, 3], 1, 2)
