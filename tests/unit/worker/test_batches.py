"""Who gets which batch of a loader that everybody reads in the same order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from syncline.batches import dealt, ranks_among


@given(
    count=st.integers(0, 60),
    replicas=st.integers(1, 4),
    ranks=st.lists(st.integers(1, 4), min_size=4, max_size=4),
)
def test_every_batch_is_for_one_rank_and_ranks_get_equally_many(
    count: int, replicas: int, ranks: list[int]
) -> None:
    seen: list[int] = []
    for replica in range(replicas):
        own = [
            list(
                dealt(
                    range(count),
                    replica=replica,
                    replicas=replicas,
                    rank=rank,
                    ranks=ranks[replica],
                )
            )
            for rank in range(ranks[replica])
        ]
        assert len({len(batches) for batches in own}) == 1
        mine = sorted(index for batches in own for index in batches)
        assert mine == [replica + replicas * i for i in range(len(mine))], "none is passed over"
        assert replica + replicas * (len(mine) + ranks[replica]) - replicas >= count
        seen += mine
    assert len(seen) == len(set(seen))


def test_a_batch_comes_no_later_than_its_turn_is_whole() -> None:
    taken: list[int] = []
    source = (taken.append(i) or i for i in range(10))
    assert next(dealt(source, replica=0, replicas=2, rank=0, ranks=2)) == 0
    assert taken == [0, 1, 2]


def test_one_process_deals_with_nobody() -> None:
    data = TensorDataset(torch.arange(4))
    assert ranks_among(DataLoader(data)) == (0, 1)
    sampler = DistributedSampler(data, num_replicas=2, rank=1)
    assert ranks_among(DataLoader(data, sampler=sampler)) == (0, 1)
