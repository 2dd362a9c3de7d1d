"""The replicas' sequences: disjoint, complete, shuffled, and resumable at any point."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.data.errors import DataError
from syncline.data.order import SequenceStream, StreamState, Stretches, permuted

# Small numbers, so that edges of powers of two and of slices collide.
SIZES = st.integers(1, 70)
SEEDS = st.integers(-(2**70), 2**70)
CALM = settings(deadline=None, max_examples=60)


def streams(size: int, seed: int, count: int) -> list[SequenceStream]:
    return [SequenceStream(size, seed, index, count) for index in range(count)]


@CALM
@given(size=SIZES, seed=SEEDS, count=st.integers(1, 9), epochs=st.integers(1, 3))
def test_in_each_epoch_the_slices_are_disjoint_and_cover_all(
    size: int, seed: int, count: int, epochs: int
) -> None:
    group = streams(max(size, count), seed, count)
    for epoch in range(epochs):
        dealt: list[int] = []
        for stream in group:
            indices, of_epoch = stream.next(stream.slice_size)
            assert of_epoch == epoch
            dealt.extend(indices.tolist())
        assert sorted(dealt) == list(range(max(size, count)))


@CALM
@given(size=SIZES, seed=SEEDS, batch=st.integers(1, 40), steps=st.integers(0, 12))
def test_a_loaded_position_goes_on_as_the_saved_one(
    size: int, seed: int, batch: int, steps: int
) -> None:
    stream = SequenceStream(size, seed, 0, 1)
    for _ in range(steps):
        stream.next(batch)
    other = SequenceStream(size, seed, 0, 1)
    other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    for _ in range(3):
        ours, theirs = stream.next(batch), other.next(batch)
        assert ours[0].tolist() == theirs[0].tolist() and ours[1] == theirs[1]


@CALM
@given(size=SIZES, batches=st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_batches_do_not_change_the_order(size: int, batches: list[int]) -> None:
    one, many = SequenceStream(size, 7, 0, 1), SequenceStream(size, 7, 0, 1)
    dealt = np.concatenate([many.next(batch)[0] for batch in batches])
    assert dealt.tolist() == one.next(sum(batches))[0].tolist()


@settings(deadline=None, max_examples=6)
@given(size=st.sampled_from([2**20 - 1, 2**20, 2**20 + 1]), seed=SEEDS)
def test_a_large_range_is_permuted_too(size: int, seed: int) -> None:
    order = permuted(np.arange(size), size, seed, 0)
    assert np.array_equal(np.bincount(order, minlength=size), np.ones(size, dtype=np.int64))


def test_the_order_is_shuffled_and_differs_between_epochs_and_seeds() -> None:
    size = 10_000
    orders = [
        permuted(np.arange(size), size, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    ]
    for order in orders:
        # A uniform shuffle moves a sequence by a third of the range on average and keeps one
        # fixed point and one pair of neighbours.
        assert abs(np.abs(order - np.arange(size)).mean() / size - 1 / 3) < 0.02
        assert np.count_nonzero(order == np.arange(size)) < 10
        assert np.count_nonzero(np.diff(order) == 1) < 10
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert np.count_nonzero(orders[one] == orders[other]) < 10


def test_small_ranges_meet_many_orders() -> None:
    seen = {tuple(permuted(np.arange(4), 4, 3, epoch)) for epoch in range(300)}
    assert len(seen) >= 12
    firsts = np.bincount([permuted(np.array([0]), 10, 3, epoch)[0] for epoch in range(2000)])
    assert firsts.min() > 120 and firsts.max() < 280


def test_the_order_is_the_same_for_ever() -> None:
    # Runs resume, and replicas of other versions join: the order is a format.
    assert permuted(np.arange(10), 10, 42, 1).tolist() == [1, 3, 2, 5, 8, 0, 7, 4, 6, 9]


def test_a_batch_may_cross_an_epoch_and_names_the_first() -> None:
    stream = SequenceStream(5, 0, 0, 1)
    assert stream.next(3)[1] == 0
    indices, epoch = stream.next(4)
    assert (epoch, stream.epoch, len(indices)) == (0, 1, 4)


def test_too_few_sequences_are_refused() -> None:
    with pytest.raises(DataError, match="2 sequences are too few for 3 replicas"):
        SequenceStream(2, 0, 0, 3)


@pytest.mark.parametrize("name", ["num_sequences", "seed", "index", "count"])
def test_the_position_of_another_stream_is_refused(name: str) -> None:
    stream = SequenceStream(9, 1, 1, 3)
    state = stream.state_dict()
    state[name] += 1
    with pytest.raises(DataError, match=f"with {name} = "):
        stream.load_state_dict(state)


def test_a_position_that_does_not_exist_is_refused() -> None:
    stream = SequenceStream(9, 1, 0, 3)
    state = stream.state_dict()
    state["position"] = 3
    with pytest.raises(DataError, match="position 3 of epoch 0 does not exist"):
        stream.load_state_dict(state)
    partial: StreamState = {"epoch": 0}  # type: ignore[typeddict-item]
    with pytest.raises(DataError, match="lacks count"):
        stream.load_state_dict(partial)


def test_the_page_of_the_protocol_tells_the_order_truly() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    told = re.search(r"N = 10, seed = 7 and e = 0 [^,]*?are the sequences ([\d, ]+)\.", page)
    assert told is not None
    expected = [int(number) for number in told[1].split(",")]
    assert permuted(np.arange(10), 10, 7, 0).tolist() == expected


@CALM
@given(
    st.integers(1, 9000),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8999), st.integers(1, 3000)), max_size=8),
)
def test_stretches_hold_what_is_looked_up_by_itself(
    size: int, reads: list[tuple[int, int, int]]
) -> None:
    stretches = Stretches(size, seed=5)
    for epoch, start, count in reads:
        start = start % size
        stop = min(start + count, size)
        alone = permuted(np.arange(start, stop), size, 5, epoch)
        assert np.array_equal(stretches.at(epoch, start, stop), alone)
