"""The inner loops of differences: int8, as in ``int8_loops``, to a value in bf16, as its bits.

What they mean, ``difference`` says. Lengths are not checked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from syncline_proto.codec.int8_loops import (
    BLOCK,
    BLOCK_BYTES,
    FINE,
    SCALE_BYTES,
    Int8,
    block_check,
    found_in,
    inverse_of,
    larger,
    magnitude,
    scale_at,
    scale_put,
)
from syncline_proto.codec.loops import (
    INFINITE,
    Float32,
    UInt8,
    UInt16,
    rounded,
    rounded_number,
    soon_read,
    soon_written,
    widened,
)
from syncline_proto.compiled import compiled, inner, read, written

Count = npt.NDArray[np.int64]
"""Of one element."""

_NONE = np.uint32(0)
_INFINITE_ROUNDED = np.uint32(0x7F7F8000)
"""The least magnitude of fp32 that is infinite when it is rounded to bf16."""


@compiled("int64", read("uint8"), "int64", "int64", "int64", "int64")
def check(data: UInt8, scale: int, first: int, head: int, elements: int) -> int:
    """Return what ``found_in`` finds in the blocks of so many elements, placed as in ``follow``."""
    given = data.view(np.int8)
    if head:
        found = found_in(given, scale, first, head)
        if found != FINE:
            return found
    blocks = given[first + head :]  # else nobody knew that places in a loop are not negative
    full, rest = (elements - head) // BLOCK, (elements - head) % BLOCK
    for k in range(full):
        found = block_check(blocks, k * BLOCK_BYTES, BLOCK)
        if found != FINE:
            return found
    return block_check(blocks, full * BLOCK_BYTES, rest) if rest else FINE


@inner
def followed(integer: np.int8, scale: np.float32, held: np.uint16) -> np.uint16:
    """One value of bf16 and what is added to it, rounded: the same bits wherever that is done."""
    return rounded(np.float32(integer) * scale + widened(held))


@inner
def block_follow(
    blocks: Int8, scale: int, at: int, count: int, held: UInt16, out: UInt16, start: int
) -> int:
    """out = held + elements of a block, rounded to bf16; return what ``found_in`` finds."""
    soon_read(blocks, at, count)
    soon_read(held, start, 2 * count)
    soon_written(out, start, 2 * count)
    unit = np.uint32(scale_at(blocks, scale)).view(np.float32)
    for i in range(count):
        out[start + i] = followed(blocks[at + i], unit, held[start + i])
    return found_in(blocks, scale, at, count)


@compiled("int64", read("uint8"), "int64", "int64", "int64", read("uint16"), written("uint16"))
def follow(data: UInt8, scale: int, first: int, head: int, held: UInt16, out: UInt16) -> int:
    """out = held + blocks, rounded to bf16; as ``scale_into``.

    At ``first`` begin the last ``head`` elements of a block whose scale is at ``scale``; the other
    blocks come after them.
    """
    given = data.view(np.int8)
    if head:
        found = block_follow(given, scale, first, head, held, out, 0)
        if found != FINE:
            return found
    blocks, before, after = given[first + head :], held[head:], out[head:]
    full, rest = after.size // BLOCK, after.size % BLOCK
    for k in range(full):
        at, start = k * BLOCK_BYTES, k * BLOCK
        found = block_follow(blocks, at, at + SCALE_BYTES, BLOCK, before, after, start)
        if found != FINE:
            return found
    at, start = full * BLOCK_BYTES, full * BLOCK
    return block_follow(blocks, at, at + SCALE_BYTES, rest, before, after, start) if rest else FINE


@inner
def block_carry(
    blocks: Int8, scale: int, at: int, count: int, held: UInt16, out: Float32, start: int
) -> None:
    """held += elements of a block, rounded to bf16; out = held."""
    soon_read(blocks, at, count)
    soon_written(held, start, 2 * count)
    soon_written(out, start, 4 * count)
    unit = np.uint32(scale_at(blocks, scale)).view(np.float32)
    for i in range(count):
        bits = followed(blocks[at + i], unit, held[start + i])
        held[start + i] = bits
        out[start + i] = widened(bits)


@compiled(
    "void",
    *(read("uint8"), "int64", "int64", "int64", written("uint16"), written("float32")),
    written("int64"),
)
def carry(
    data: UInt8, scale: int, first: int, head: int, held: UInt16, out: Float32, done: Count
) -> None:
    """held += blocks, placed as in ``follow``, rounded to bf16; out = held; done[0] += 1.

    ``follow`` where it lies, and into a model, in one pass: half the memory is gone through. No
    signal of Python's comes between the last element and ``done``.
    """
    given = data.view(np.int8)
    if head:
        block_carry(given, scale, first, head, held, out, 0)
    blocks, value, into = given[first + head :], held[head:], out[head:]
    full, rest = into.size // BLOCK, into.size % BLOCK
    for k in range(full):
        at = k * BLOCK_BYTES
        block_carry(blocks, at, at + SCALE_BYTES, BLOCK, value, into, k * BLOCK)
    if rest:
        at = full * BLOCK_BYTES
        block_carry(blocks, at, at + SCALE_BYTES, rest, value, into, full * BLOCK)
    done[0] += 1


@inner
def block_advance(
    held: UInt16, values: Float32, start: int, count: int, change: Float32, out: Int8, at: int
) -> bool:
    """out = values - held, as a block; held += that block, rounded to bf16.

    As ``block_follow`` of what ``block_write`` makes, while the integers are in registers. False
    where something is not finite, be it a NaN: ``held`` is undefined then.
    """
    soon_written(held, start, 2 * count)
    soon_written(out, at, count)
    peak = _NONE
    for i in range(count):
        change[i] = values[start + i] - widened(held[start + i])
        peak = larger(peak, magnitude(change[i]))
    if peak >= INFINITE:
        return False
    bits = scale_put(peak, out, at)
    scale, inverse = np.uint32(bits).view(np.float32), inverse_of(bits)
    largest = _NONE
    for i in range(count):
        integer = np.int32(np.rint(change[i] * inverse))
        out[at + SCALE_BYTES + i] = np.int8(integer)
        value = np.float32(integer) * scale + widened(held[start + i])
        largest = larger(largest, magnitude(value))
        held[start + i] = rounded_number(value)
    return bool(largest < _INFINITE_ROUNDED)


@compiled("boolean", written("uint16"), read("float32"), written("uint8"))
def advance(held: UInt16, values: Float32, out: UInt8) -> bool:
    """Write ``values`` less ``held`` as blocks, and add to ``held`` what those decode to.

    False, and ``held`` and ``out`` are undefined, if something on the way is not finite.
    """
    change = np.empty(BLOCK, np.float32)
    blocks, full, rest = out.view(np.int8), values.size // BLOCK, values.size % BLOCK
    for k in range(full):
        if not block_advance(held, values, k * BLOCK, BLOCK, change, blocks, k * BLOCK_BYTES):
            return False
    at = full * BLOCK_BYTES
    return not rest or block_advance(held, values, full * BLOCK, rest, change, blocks, at)
