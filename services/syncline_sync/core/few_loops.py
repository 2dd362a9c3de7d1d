"""The inner loops of a round of few pushes, stepped as they came; what they are for, ``few`` says.

Each goes through all pushes block by block: their sum is made in the processor's cache, and only
there. Pushes come as ``FEW_MAX`` arrays of bytes, of which ``count`` are read; they are blocks of
int8, or bf16. ``room`` is for the loop: fp32 [2 * BLOCK].
"""

from __future__ import annotations

import numpy as np

from syncline_proto.codec.base import Float32, Float64, UInt8, UInt16
from syncline_proto.codec.difference_loops import block_advance
from syncline_proto.codec.int8_loops import BLOCK, BLOCK_BYTES, SCALE_BYTES, Int8, scale_at
from syncline_proto.codec.loops import AHEAD_BYTES, LINE_BYTES, soon_read, widened
from syncline_proto.compiled import compiled, fetch_to_read, fetch_to_write, inner, read, written
from syncline_sync.core.loops import NUMBERS

FEW_MAX = 4
"""Pushes that are summed so: as many arrays as the loops have for them."""

_PUSHES = ("boolean", "int64", *(read("uint8"),) * FEW_MAX, read("float32"))
"""Whether they are in int8, how many, each of them, and the factors."""


@inner
def _scale(blocks: Int8, at: int) -> np.float32:
    return np.uint32(scale_at(blocks, at)).view(np.float32)


@inner
def add_int8(
    blocks: Int8, at: int, n: int, rescale: np.float32, weight: np.float32, total: Float32
) -> None:
    """total = rescale * total + weight * the block at ``at``, of ``n`` elements."""
    soon_read(blocks, at, n)
    scale = _scale(blocks, at)
    for i in range(n):
        one = np.float32(blocks[at + SCALE_BYTES + i]) * scale * weight
        total[i] = total[i] * rescale + one


@inner
def add_bf16(
    bits: UInt16, at: int, n: int, rescale: np.float32, weight: np.float32, total: Float32
) -> None:
    """As ``add_int8``, of the elements from ``at`` on."""
    soon_read(bits, at, 2 * n)
    for i in range(n):
        total[i] = total[i] * rescale + widened(bits[at + i]) * weight


@inner
def sum_of_int8(
    count: int,
    first: Int8,
    second: Int8,
    third: Int8,
    fourth: Int8,
    factors: Float32,
    k: int,
    elements: int,
    total: Float32,
) -> None:
    """total = the sum of the ``k``-th blocks, of so many ``elements``, as pushes are folded.

    ``factors`` are the first one's weight, and of each other its rescale and its weight.
    """
    at, n = k * BLOCK_BYTES, elements
    soon_read(first, at, n)
    scale, weight = _scale(first, at), factors[0]
    if count == 1:
        for i in range(n):
            total[i] = np.float32(first[at + SCALE_BYTES + i]) * scale * weight
        return
    soon_read(second, at, n)
    other, rescale, its = _scale(second, at), factors[1], factors[2]
    for i in range(n):
        one = np.float32(first[at + SCALE_BYTES + i]) * scale * weight * rescale
        total[i] = one + np.float32(second[at + SCALE_BYTES + i]) * other * its
    if count > 2:
        add_int8(third, at, n, factors[3], factors[4], total)
    if count > 3:
        add_int8(fourth, at, n, factors[5], factors[6], total)


@inner
def sum_of_bf16(
    count: int,
    first: UInt16,
    second: UInt16,
    third: UInt16,
    fourth: UInt16,
    factors: Float32,
    k: int,
    elements: int,
    total: Float32,
) -> None:
    """As ``sum_of_int8``."""
    at, n = k * BLOCK, elements
    soon_read(first, at, 2 * n)
    weight = factors[0]
    if count == 1:
        for i in range(n):
            total[i] = widened(first[at + i]) * weight
        return
    soon_read(second, at, 2 * n)
    rescale, its = factors[1], factors[2]
    for i in range(n):
        one = widened(first[at + i]) * weight * rescale
        total[i] = one + widened(second[at + i]) * its
    if count > 2:
        add_bf16(third, at, n, factors[3], factors[4], total)
    if count > 3:
        add_bf16(fourth, at, n, factors[5], factors[6], total)


@inner
def as_int8(data: UInt8) -> Int8:
    return data.view(np.int8)


@inner
def as_bf16(data: UInt8) -> UInt16:
    return data[: data.size // 2 * 2].view(np.uint16)


@inner
def step_of_block(
    is_int8: bool,
    count: int,
    first: UInt8,
    second: UInt8,
    third: UInt8,
    fourth: UInt8,
    factors: Float32,
    k: int,
    elements: int,
    parameters: Float32,
    momentum: Float32,
    out: Float32,
    factor: np.float32,
    keep: np.float32,
    ahead: np.float32,
    lr: np.float32,
    squares: Float64,
    total: Float32,
) -> None:
    """``loops.step_of`` the ``k``-th block with the pushes' sum for the accumulator, into ``out``.

    Written once more here: shared with that, it costs both loops 5 % of their time. The squares of
    the sum are added to ``squares``, element by element: so many go at once without another order
    of additions.
    """
    start = k * BLOCK
    for i in range(0, elements, LINE_BYTES // 4):
        # In turns, as in ``loops.step_of``.
        fetch_to_write(momentum, start + i, AHEAD_BYTES)
        fetch_to_write(out, start + i, AHEAD_BYTES)
        fetch_to_read(parameters, start + i, AHEAD_BYTES)
    if is_int8:
        one, two, three, four = as_int8(first), as_int8(second), as_int8(third), as_int8(fourth)
        sum_of_int8(count, one, two, three, four, factors, k, elements, total)
    else:
        b1, b2, b3, b4 = as_bf16(first), as_bf16(second), as_bf16(third), as_bf16(fourth)
        sum_of_bf16(count, b1, b2, b3, b4, factors, k, elements, total)
    for i in range(elements):
        squares[i] += np.float64(total[i]) * np.float64(total[i])
    for i in range(elements):
        d = total[i] * factor
        v = momentum[start + i] * keep + d
        momentum[start + i] = v
        out[start + i] = parameters[start + i] - (v * ahead + d) * lr


@compiled(
    "void",
    *_PUSHES,
    read("float32"),
    written("float32"),
    written("float32"),
    *NUMBERS,
    written("float64"),
    written("float32"),
    owns_nothing=True,
)
def step(
    is_int8: bool,
    count: int,
    first: UInt8,
    second: UInt8,
    third: UInt8,
    fourth: UInt8,
    factors: Float32,
    parameters: Float32,
    momentum: Float32,
    out: Float32,
    factor: np.float32,
    keep: np.float32,
    ahead: np.float32,
    lr: np.float32,
    squares: Float64,
    room: Float32,
) -> None:
    """``loops.step`` with, for acc, the sum of the pushes; theta goes to ``out``."""
    total = room[:BLOCK]
    full, rest = out.size // BLOCK, out.size % BLOCK
    for k in range(full):
        step_of_block(
            is_int8, count, first, second, third, fourth, factors, k, BLOCK,
            parameters, momentum, out, factor, keep, ahead, lr, squares, total,
        )  # fmt: skip
    if rest:
        step_of_block(
            is_int8, count, first, second, third, fourth, factors, full, rest,
            parameters, momentum, out, factor, keep, ahead, lr, squares, total,
        )  # fmt: skip


@compiled(
    "boolean",
    *_PUSHES,
    written("float32"),
    written("float32"),
    *NUMBERS,
    written("uint16"),
    written("uint8"),
    written("float64"),
    written("float32"),
    owns_nothing=True,
)
def step_and_advance(
    is_int8: bool,
    count: int,
    first: UInt8,
    second: UInt8,
    third: UInt8,
    fourth: UInt8,
    factors: Float32,
    parameters: Float32,
    momentum: Float32,
    factor: np.float32,
    keep: np.float32,
    ahead: np.float32,
    lr: np.float32,
    held: UInt16,
    told: UInt8,
    squares: Float64,
    room: Float32,
) -> bool:
    """``step`` in place, and ``difference_loops.advance`` to what that leaves.

    Where new parameters go into an array of their own it takes a third more: 25M of them take 38 ms
    in place of 28, by two pushes in int8.
    """
    total, change = room[:BLOCK], room[BLOCK:]
    tell, is_fine = as_int8(told), True
    full, rest = parameters.size // BLOCK, parameters.size % BLOCK
    for k in range(full):
        step_of_block(
            is_int8, count, first, second, third, fourth, factors, k, BLOCK,
            parameters, momentum, parameters, factor, keep, ahead, lr, squares, total,
        )  # fmt: skip
        is_fine = is_fine and block_advance(
            held, parameters, k * BLOCK, BLOCK, change, tell, k * BLOCK_BYTES
        )
    if rest:
        step_of_block(
            is_int8, count, first, second, third, fourth, factors, full, rest,
            parameters, momentum, parameters, factor, keep, ahead, lr, squares, total,
        )  # fmt: skip
        is_fine = is_fine and block_advance(
            held, parameters, full * BLOCK, rest, change, tell, full * BLOCK_BYTES
        )
    return is_fine
