"""A few that are published by difference change parameters where they lie; no others do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from syncline_proto.merging import OuterSettings
from syncline_testing.few import weighed
from syncline_testing.held import Fragment, values

DOWNS = [*["int8"] * 3, *["bf16"] * 2, *["int8"] * 2, *["fp32"] * 2, *["int8"] * 2, "bf16", "int8"]
"""Of each round: two by difference after whole ones, and the other way."""

ALL = range(len(DOWNS))
SUMMED = ALL[:0], ALL, ALL[::2], ALL[1::2]
"""Rounds that have a sum; all others are of a few."""


def in_switching_rounds(
    folder: Path, first: str, *, summed: Collection[int], behind: bool, starts_anew: bool
) -> list[bytes]:
    """What rounds of two leave whose downlink changes; ``starts_anew``: from the disk, each."""
    left: list[bytes] = []
    published: list[bytes] = []

    async def main() -> None:
        with ThreadPoolExecutor(2) as pool:
            f = Fragment(folder, pool, first, behind)
            f.outer = OuterSettings(clip=None)  # else they may be clipped
            await f.offer(values(1))
            published.append(await f.read(0))
            for number, down in enumerate(DOWNS):
                await f.holding.written()  # else they are folded
                if starts_anew:
                    await f.holding.end()
                    f = Fragment(folder, pool, down, behind)
                    f.outer = OuterSettings(clip=None)
                f.down = down
                for one in range(2):
                    await f.holding.fold(weighed(2 * number + one, 0.7 + one), lambda: None)
                if number in summed:
                    await f.holding.fold_first()
                kept = range(max(0, f.revision - 1), f.revision + 1)
                assert [await f.read(one) for one in kept] == published[-2:], "a sum lies there"
                parameters, spare = f.holding._parameters, f.holding._spare
                follows = down == "int8" and f.holding._sent is not None
                is_in_place = follows and number not in summed
                await f.close(1.7)
                assert (f.holding._parameters is parameters) == is_in_place
                assert f.holding._spare is spare or not is_in_place, "it takes no third array"
                await f.holding.written()
                assert await f.read(f.revision - 1) == published[-1]
                published.append(await f.read(f.revision))
            left.extend(await f.left())

    asyncio.run(main())
    return published + left


@pytest.mark.parametrize("first", ["int8", "fp32"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("starts_anew", [False, True])
def test_few_change_parameters_where_they_lie_once_nothing_is_sent_from_there(
    first: str, behind: bool, starts_anew: bool, tmp_path: Path
) -> None:
    """Whatever the downlink was before: to the bits of sums, and what was published stays."""
    left = [
        in_switching_rounds(
            tmp_path / str(number), first, summed=summed, behind=behind, starts_anew=starts_anew
        )
        for number, summed in enumerate(SUMMED)
    ]
    assert left == left[:1] * len(SUMMED)
