"""Where the bytes of a published value come from: as they are sent, the parameters, or their file.

All give the same bytes for the same spans. What is sent is encoded once for everyone; the others
encode what is asked for, each time. Knows nothing of revisions, and who may read when.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from syncline_proto.codec import Bytes, Float32, codec_of, cut, encode
from syncline_proto.errors import RevisionGone, StoreDamaged
from syncline_proto.spans import Spans
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.cuts import FEW_SPANS
from syncline_sync.descriptors import opened
from syncline_sync.files import (
    MEND,
    Array,
    arrays_of,
    checksum_of,
    read_exactly,
    readable,
    understood,
)

_BITS = {2: np.uint16, 4: np.uint32}
"""What stands for an element of so many bytes where only its bits matter."""


class Source(Protocol):
    """One fragment's value."""

    is_light: bool = False
    """A few spans of it are read as fast as they are copied."""
    is_at_disk: bool = False
    """To read it may wait for the disk."""

    def read(self, spans: Spans) -> Bytes:
        """The encoded elements of these spans, one after another. Heavy, but for ``is_light``.

        They may lie in the value, which is to stay as it is until they have been used.
        """
        ...

    def hold(self) -> None:
        """Be able to go on giving it, whatever becomes of its file; it may wait for the disk."""

    def close(self) -> None:
        """Nobody will read any more; it may wait for the disk."""


class Sent(Source):
    """Encoded already, as all of it is sent."""

    is_light = True

    def __init__(self, payload: memoryview, codec: pb.Codec.ValueType) -> None:
        self._payload, self._width = payload, codec_of(codec).size(1)

    def read(self, spans: Spans) -> Bytes:
        if len(spans) <= FEW_SPANS:
            cuts = (spans * self._width).tolist()
            if len(cuts) == 1:
                at, size = cuts[0]
                return self._payload[at : at + size]
            return b"".join(self._payload[at : at + size] for at, size in cuts)
        return np.frombuffer(self._payload, _BITS[self._width])[indices(spans)].tobytes()


class Plain(Source):
    """fp32 values [numel] that nobody changes while they are read here."""

    def __init__(self, values: Float32, codec: pb.Codec.ValueType) -> None:
        self._values, self._codec = values, codec

    def read(self, spans: Spans) -> bytes:
        if len(spans) == 1:
            at, size = spans[0].tolist()
            return bytes(encode(self._values[at : at + size], self._codec))
        return bytes(encode(self._values[indices(spans)], self._codec))


class Difference(Source):
    """An int8 difference to the published value before."""

    is_light = True

    def __init__(self, payload: memoryview) -> None:
        """``payload`` is what ``advance`` returned."""
        self.payload: memoryview | None = payload
        """None once it was closed, whoever still has this."""

    def read(self, spans: Spans) -> Bytes:
        """The encoded bytes of these spans.

        Raises:
            RevisionGone: it was closed.
        """
        payload = self.payload
        if payload is None:
            raise RevisionGone("The difference is gone.")
        return cut(payload, spans)

    def close(self) -> None:
        self.payload = None


class Filed(Source):
    """An array of a file of the store: fp32, or bf16, which is sent as it lies there.

    It is opened when it is read, or held; from then on until it is closed it may be removed.
    """

    is_at_disk = True

    def __init__(
        self, path: Path, size: int, crc32c: int, array: str, codec: pb.Codec.ValueType
    ) -> None:
        """``size`` and ``crc32c`` are the file's, as its head names them; ``array`` is a name."""
        self._path, self._size, self._crc32c = path, size, crc32c
        self._name, self._codec = array, codec
        self._file = -1
        self._array: Array | None = None
        """Where it lies; None until the file was found whole."""
        self._lock = threading.Lock()
        self._finding = threading.Lock()
        """One thread reads all of it to see that it is whole; others wait for that."""

    def hold(self) -> None:
        """Keep the file, whatever becomes of its name.

        Raises:
            RevisionGone: it has been removed.
            StoreDamaged: it cannot be opened.
            StoreError: no file descriptor is left for it.
        """
        with self._lock, readable(self._path):
            if self._file < 0:
                try:
                    self._file = opened(self._path, lambda: os.open(self._path, os.O_RDONLY))
                except FileNotFoundError as error:
                    raise RevisionGone(f"{self._path.name} is gone.") from error

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def read(self, spans: Spans) -> bytes:
        """The encoded bytes of these spans.

        Raises:
            RevisionGone: the file has been removed.
            StoreDamaged: its bytes are others, or the disk does not give them.
            StoreError: no file descriptor is left for it.
        """
        self.hold()
        with readable(self._path), understood(self._path):
            with self._finding:
                array = self._array or self._found()
            width = array.dtype.itemsize
            values = np.empty(int(spans[:, 1].sum()), _BITS[width])
            into, at = values.data.cast("B"), 0
            for start, length in (spans * width).tolist():
                read_exactly(self._file, into[at : at + length], array.at + start)
                at += length
        if array.dtype != np.float32:
            return bytes(into)
        return bytes(encode(values.view(np.float32), self._codec))

    def _found(self) -> Array:
        if checksum_of(self._file) != (self._size, self._crc32c):
            raise StoreDamaged(f"{self._path} is damaged: its checksum is another. {MEND}")
        self._array = arrays_of(self._file)[0][self._name]
        return self._array


def indices(spans: Spans) -> npt.NDArray[np.int64]:
    """The indices of all elements of the spans, one after another. Heavy."""
    starts, lengths = spans[:, 0], spans[:, 1]
    before = np.cumsum(lengths) - lengths
    found = np.repeat(starts - before, lengths)
    found += np.arange(found.size)
    return found
