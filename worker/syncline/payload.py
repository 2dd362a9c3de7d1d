"""What a push carries, as chunks: encoded already, or encoded as it goes out.

A codec that loses too much to lose (``has_feedback``) has to be asked, once the service has
answered, what it lost: so its values are kept, and encoded late, off the training thread; those of
any codec, too, while something is owed. All else is encoded where the values are computed, while
these are in the processor's cache; nobody needs them in fp32 any more, so a push is as large as
what is sent. What a GPU is still copying is encoded when it has come, in the exchange's thread and
before the push is announced: whoever looks at a payload first makes it be ``here``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeAlias

import numpy as np

from syncline.core.feedback import has_feedback, loss_of
from syncline_proto.codec import (
    CODEC_BY_NAME,
    Float32,
    UInt8,
    chunk_elements,
    chunks,
    codec_of,
    encode,
)
from syncline_proto.parts import Chunk
from syncline_proto.settings import CodecName


@dataclass(slots=True)
class Later:
    """What is to be done when something has come: once, whoever calls, and then it is done."""

    act: Callable[[], None] | None
    _turn: Lock = field(default_factory=Lock)

    def __call__(self) -> None:
        with self._turn:
            if self.act is not None:
                self.act()
                self.act = None  # and what it holds


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Encoded:
    """Bytes that do not change before the push has ended."""

    memory: UInt8
    """Anything, until they are ``here``."""
    codec: CodecName = "fp32"
    finish: Callable[[], None] = _nothing
    """Makes them be here, however often it is called."""

    def here(self) -> UInt8:
        """The bytes."""
        self.finish()
        return self.memory

    @property
    def size(self) -> int:
        """Bytes that are sent."""
        return self.memory.size

    def chunks(self) -> Iterator[Chunk]:
        """The chunks in order; the same however often they are asked for."""
        return chunks(self.here().data, CODEC_BY_NAME[self.codec])


@dataclass(frozen=True, slots=True)
class Values:
    """fp32 [n], contiguous, that do not change before the push has ended."""

    values: Float32
    """Anything, until they are ``here``."""
    codec: CodecName
    finish: Callable[[], None] = _nothing
    """As that of ``Encoded``."""

    def here(self) -> Float32:
        """The values."""
        self.finish()
        return self.values

    @property
    def memory(self) -> UInt8:
        """Their memory."""
        return self.values.view(np.uint8)

    @property
    def size(self) -> int:
        """Bytes that are sent."""
        return codec_of(CODEC_BY_NAME[self.codec]).size(self.values.size)

    def chunks(self) -> Iterator[Chunk]:
        """The chunks in order; each is encoded when it is taken, so few are in memory."""
        number, values = CODEC_BY_NAME[self.codec], self.here()
        step = chunk_elements(number)
        for start in range(0, values.size, step):
            yield from chunks(encode(values[start : start + step], number), number)

    def loss(self) -> Float32 | None:
        """What the codec loses of the values (fp32, flat); None, where that is not kept."""
        return loss_of(self.here(), self.codec) if has_feedback(self.codec) else None


Payload: TypeAlias = Encoded | Values
