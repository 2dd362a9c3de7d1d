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

from syncline_proto.codec import CHUNK_BYTES_MAX, Float32, encode, width
from syncline_proto.errors import RevisionGone
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Saved

KEPT = 2


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
        return cls(saved, codec, memoryview(bytes(payload)) if width(codec) == 4 else payload)

    def chunks(self, spans: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """The bytes of a shard, in payload order, cut into full chunks."""
        wide = width(self.codec)
        parts: list[memoryview] = []
        room = CHUNK_BYTES_MAX
        for start, length in spans.tolist():
            at, end = start * wide, (start + length) * wide
            while at < end:
                part = self.payload[at : min(at + room, end)]
                parts.append(part)
                at += len(part)
                room -= len(part)
                if room == 0:
                    yield b"".join(parts)
                    parts, room = [], CHUNK_BYTES_MAX
        if parts:
            yield b"".join(parts)


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
                    raise NewestNamed(
                        f"{self._what} {number} is gone; the newest is {newest}.", newest
                    )
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
