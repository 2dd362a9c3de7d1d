"""Which sequence goes to whom: a permutation for each epoch, cut into one slice for each replica.

Pure: arithmetic on integers; no random generator, no I/O, no memory that grows with the data.
The permutation is a small block cipher over the positions (a Feistel network, which is a
bijection whatever its round function is), walked until it lands inside the range. It depends on
nothing but its arguments: machines with other versions of numpy agree, and any position can be
looked up without those before it. It shuffles; it is no cryptography.
"""

from typing import TypedDict

import numpy as np

from syncline.data.errors import DataError

ROUNDS = 6
STRETCH = 2048
"""Positions that are looked up together: a few of them alone take almost as long."""
MASK_64 = (1 << 64) - 1


class StreamState(TypedDict):
    """Where a stream stands, and of what it is the stream. Plain values, ready for JSON."""

    num_sequences: int
    seed: int
    index: int
    count: int
    epoch: int
    position: int


def permuted(positions: np.ndarray, num_sequences: int, seed: int, epoch: int) -> np.ndarray:
    """The sequences at these positions of the epoch's order, int64.

    Over all positions of [0, num_sequences) it is a permutation.
    """
    assert num_sequences > 0
    values = np.asarray(positions, dtype=np.uint64)
    assert not values.size or int(values.max()) < num_sequences
    bits = max(2, (num_sequences - 1).bit_length())
    keys = _round_keys(seed, epoch)
    values = _feistel(values, bits, keys)
    # The cipher's domain is a power of two, less than twice the range (4 where the range is tiny).
    # What lands outside is enciphered again: each walk ends, as it goes round a cycle that holds
    # its own start, which lies inside.
    outside = np.flatnonzero(values >= num_sequences)
    while outside.size:
        values[outside] = _feistel(values[outside], bits, keys)
        outside = outside[values[outside] >= num_sequences]
    return values.astype(np.int64)


class Stretches:
    """The orders of all epochs, for who reads them in small steps."""

    def __init__(self, num_sequences: int, seed: int) -> None:
        self._num_sequences, self._seed = num_sequences, seed
        self._epoch, self._start = 0, 0
        self._sequences = np.empty(0, dtype=np.int64)

    def at(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """The sequences at positions ``start`` to ``stop`` - 1, int64."""
        found = start - self._start
        if epoch != self._epoch or found < 0 or stop > self._start + self._sequences.size:
            end = min(max(stop, start + STRETCH), self._num_sequences)
            positions = np.arange(start, end, dtype=np.int64)
            self._sequences = permuted(positions, self._num_sequences, self._seed, epoch)
            self._epoch, self._start, found = epoch, start, 0
        return self._sequences[found : found + stop - start]


class SequenceStream:
    """One replica's sequences, epoch after epoch, without an end.

    Invariants:
        - in one epoch the slices of all ``count`` replicas are disjoint and cover every sequence;
        - slices differ in size by at most one;
        - a stream that loads another's state goes on exactly as that one would.
    """

    def __init__(self, num_sequences: int, seed: int, index: int, count: int) -> None:
        if not 0 <= index < count:
            raise DataError(f"replica {index} of {count}: the index must be in [0, {count}).")
        if num_sequences < count:
            raise DataError(
                f"{num_sequences} sequences are too few for {count} replicas; "
                "prepare more text or shorten the sequences."
            )
        self._num_sequences = num_sequences
        self._seed = seed
        self._index = index
        self._count = count
        self._epoch = 0
        self._position = 0

    @property
    def slice_size(self) -> int:
        """How many sequences of each epoch are this replica's."""
        return len(range(self._index, self._num_sequences, self._count))

    @property
    def epoch(self) -> int:
        """The epoch that the next sequence is of, counted from 0."""
        return self._epoch

    def next(self, batch: int) -> tuple[np.ndarray, int]:
        """The next ``batch`` sequences (int64) and the epoch of the first of them.

        A batch may reach into the next epoch, so that every batch is whole.
        """
        assert batch > 0
        first_epoch = self._epoch
        parts: list[np.ndarray] = []
        wanted = batch
        while wanted:
            taken = min(wanted, self.slice_size - self._position)
            slots = np.arange(self._position, self._position + taken, dtype=np.int64)
            positions = slots * self._count + self._index
            parts.append(permuted(positions, self._num_sequences, self._seed, self._epoch))
            wanted -= taken
            self._position += taken
            if self._position == self.slice_size:
                self._epoch += 1
                self._position = 0
        return np.concatenate(parts), first_epoch

    def state_dict(self) -> StreamState:
        """Where the stream stands: all that ``load_state_dict`` needs."""
        return StreamState(
            num_sequences=self._num_sequences,
            seed=self._seed,
            index=self._index,
            count=self._count,
            epoch=self._epoch,
            position=self._position,
        )

    def load_state_dict(self, state: StreamState) -> None:
        """Go on where ``state`` was taken.

        Raises:
            DataError: the state is of another order or slice, where its position means nothing.
        """
        own = self.state_dict()
        if missing := sorted(own.keys() - state.keys()):
            raise DataError(f"the saved position of the data lacks {', '.join(missing)}.")
        for name in ("num_sequences", "seed", "index", "count"):
            if state[name] != own[name]:
                raise DataError(
                    f"the saved position is of data with {name} = {state[name]}, "
                    f"here it is {own[name]}."
                )
        if not (state["epoch"] >= 0 and 0 <= state["position"] < self.slice_size):
            raise DataError(
                f"the saved position {state['position']} of epoch {state['epoch']} does not exist."
            )
        self._epoch = state["epoch"]
        self._position = state["position"]


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    """The cipher's keys. Source: splitmix64 (Steele, Lea, Flood 2014), seeded twice."""
    state = _splitmix64((seed & MASK_64) ^ _splitmix64(epoch & MASK_64))
    keys: list[np.uint64] = []
    for _ in range(ROUNDS):
        state = _splitmix64(state)
        keys.append(np.uint64(state))
    return keys


def _splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)


def _feistel(values: np.ndarray, bits: int, keys: list[np.uint64]) -> np.ndarray:
    """Encipher ``bits``-bit values, uint64. Halves of unequal width change places each round."""
    right_bits = bits // 2
    left_bits = bits - right_bits
    left = values >> np.uint64(right_bits)
    right = values & np.uint64((1 << right_bits) - 1)
    for key in keys:
        left_mask = np.uint64((1 << left_bits) - 1)
        left, right = right, left ^ (_mixed(right ^ key) & left_mask)
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mixed(values: np.ndarray) -> np.ndarray:
    """splitmix64's finisher, on arrays; unsigned products wrap, as they should."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
