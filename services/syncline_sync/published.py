"""What replicas may pull: the last two revisions of a fragment, encoded once for everyone.

A pull waits for the very revision it names; an older one than the kept is refused with the
newest named. Decides nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline_proto.codec import Float32, chunk_elements, codec_of, encode
from syncline_proto.errors import RevisionGone
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import KEPT, Saved
from syncline_sync.report import pushed

FEW_SPANS = 1024
"""So many stretches are copied one by one, which takes less than a millisecond."""

CHUNKS_SMALLER = 4
"""Than they might be: just as fast, and a reader that takes none costs less."""

_LITTLE = {2: np.uint16, 4: np.uint32}
"""What stands for an element of so many bytes where only its bits matter."""


class NewestNamed(RevisionGone):
    """RevisionGone, with the newest revision for the trailer."""

    def __init__(self, message: str, newest: int) -> None:
        super().__init__(message)
        self.newest = newest


@dataclass(frozen=True, slots=True)
class Published:
    """One revision (or mean gradient) as everyone sees it."""

    saved: Saved
    codec: pb.Codec.ValueType
    payload: memoryview

    @classmethod
    def of(cls, saved: Saved, values: Float32, codec: pb.Codec.ValueType) -> Published:
        """Encode fp32 ``values``; they may change afterwards."""
        payload = encode(values, codec)
        is_view = codec == pb.CODEC_FP32
        return cls(saved, codec, memoryview(bytes(payload)) if is_view else payload)

    def header(self, elements: int, instance: str) -> pb.PullHeader:
        """What goes before the chunks of ``elements``; ``instance`` is the service's."""
        return pb.PullHeader(
            epoch=self.saved.epoch,
            revision=self.saved.revision,
            gradient_step=self.saved.gradient_step,
            codec=self.codec,
            elements=elements,
            committed_tokens=self.saved.committed_tokens,
            contributions=pushed(self.saved),
            instance=instance,
        )

    def chunks(self, spans: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """The bytes of a shard, in payload order, cut into equal chunks but for the last.

        ``spans`` is int64 [k, 2], start and length in elements, none empty. Each step may be heavy
        where they are more than ``FEW_SPANS``: draw it in the pool then.
        """
        ends = np.cumsum(spans[:, 1])  # in the payload
        full = chunk_elements(self.codec) // CHUNKS_SMALLER
        total = int(spans[:, 1].sum())
        for begin in range(0, total, full):
            end = min(begin + full, total)
            first = np.searchsorted(ends, begin, side="right")
            last = np.searchsorted(ends, end, side="left")
            here = spans[first : last + 1].copy()
            skipped = begin - (ends[first] - spans[first, 1])
            here[0] += (skipped, -skipped)
            here[-1, 1] -= ends[last] - end
            yield self._bytes(here)

    def _bytes(self, spans: npt.NDArray[np.int64]) -> bytes:
        """The bytes of these spans, one after another."""
        wide = codec_of(self.codec).size(1)
        if len(spans) <= FEW_SPANS:
            cuts = (spans * wide).tolist()
            return b"".join(self.payload[at : at + size] for at, size in cuts)
        starts, lengths = spans[:, 0], spans[:, 1]
        before = np.cumsum(lengths) - lengths
        places = np.repeat(starts - before, lengths)
        places += np.arange(places.size)
        return np.frombuffer(self.payload, _LITTLE[wide])[places].tobytes()


class Shelf:
    """The published values of one kind, by number; only the newest ``KEPT`` stay."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._values: dict[int, Published] = {}
        self._changed = asyncio.Event()
        self._over: NewestNamed | None = None

    @property
    def newest(self) -> int | None:
        return max(self._values, default=None)

    def end(self, why: str, newest: int) -> None:
        """Nothing more will come: free the values, and tell ``why`` to all who ask or wait."""
        self._over = NewestNamed(why, newest)
        self.clear()

    def put(self, number: int, value: Published) -> None:
        self._values[number] = value
        for old in sorted(self._values)[:-KEPT]:
            del self._values[old]
        self._wake()

    def clear(self) -> None:
        self._values.clear()
        self._wake()

    def keeps(self, value: Published) -> bool:
        """Whether this very value may be had here."""
        return any(kept is value for kept in self._values.values())

    def gone(self, number: int) -> NewestNamed:
        """What to tell who wants a number that is not kept any more."""
        if self._over is not None:
            return NewestNamed(self._over.message, self._over.newest)
        newest = self.newest or 0
        return NewestNamed(f"{self._what} {number} is gone; the newest is {newest}.", newest)

    async def get(self, number: int | None) -> Published:
        """Wait for exactly this number, or with None for the newest there is.

        Raises:
            RevisionGone: it is older than the kept ones, or nothing more will come.
        """
        while True:
            if self._over is not None:
                raise NewestNamed(self._over.message, self._over.newest)
            newest = self.newest
            if newest is not None:
                if number is None:
                    return self._values[newest]
                if number in self._values:
                    return self._values[number]
                if number < newest:
                    raise self.gone(number)
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Loan:
    """A value that a pull reads: once its shelf has dropped it, it is in memory for that alone."""

    def __init__(self, shelf: Shelf, number: int, value: Published) -> None:
        self._shelf, self._number, self.value = shelf, number, value
        self._dropped_s: float | None = None
        """When that was seen; None while the shelf keeps it."""

    def check(self, now_s: float, still_s: float) -> None:
        """Look whether reading may go on; call it for each chunk.

        Raises:
            RevisionGone: the shelf dropped it ``still_s`` ago.
        """
        if self._shelf.keeps(self.value):
            return
        if self._dropped_s is None:
            self._dropped_s = now_s
        if now_s >= self._dropped_s + still_s:
            raise self._shelf.gone(self._number)
