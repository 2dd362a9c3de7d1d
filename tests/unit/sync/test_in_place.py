"""A pair that is published by difference changes the parameters where they lie; no other does."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from syncline_proto.merging import OuterSettings
from syncline_testing.held import Fragment, values
from syncline_testing.pairs import weighed

DOWNS = [*["int8"] * 3, *["bf16"] * 2, *["int8"] * 2, *["fp32"] * 2, *["int8"] * 2, "bf16", "int8"]
"""Of each round: two by difference after whole ones, and the other way."""


def in_switching_rounds(
    folder: Path, first: str, *, summed: bool, behind: bool, starts_anew: bool
) -> list[bytes]:
    """What rounds of two leave whose downlink changes; ``starts_anew``: from the disk, each."""
    left: list[bytes] = []

    async def main() -> None:
        with ThreadPoolExecutor(2) as pool:
            f = Fragment(folder, pool, first, behind)
            f.outer = OuterSettings()
            await f.offer(values(1))
            for number, down in enumerate(DOWNS):
                await f.holding.written()  # else the pair is folded
                if starts_anew:
                    await f.holding.end()
                    f = Fragment(folder, pool, down, behind)
                    f.outer = OuterSettings()
                f.down, before = down, await f.read(f.revision)
                for one in range(2):
                    await f.holding.fold(weighed(2 * number + one, 0.7 + one), lambda: None)
                if summed:
                    await f.holding.fold_first()
                parameters, spare = f.holding._parameters, f.holding._spare
                is_in_place = down == "int8" and f.holding._sent is not None and not summed
                await f.close(1.7)
                assert (f.holding._parameters is parameters) == is_in_place
                assert f.holding._spare is spare or not is_in_place, "it takes no third array"
                await f.holding.written()
                assert await f.read(f.revision - 1) == before
                left.append(await f.read(f.revision))
            left.extend(await f.left())

    asyncio.run(main())
    return left


@pytest.mark.parametrize("first", ["int8", "fp32"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("starts_anew", [False, True])
def test_a_pair_changes_parameters_where_they_lie_once_nothing_is_sent_from_there(
    first: str, behind: bool, starts_anew: bool, tmp_path: Path
) -> None:
    """Whatever the downlink was before: to the bits of sums, and what was published stays."""
    pairs, sums = (
        in_switching_rounds(
            tmp_path / str(summed), first, summed=summed, behind=behind, starts_anew=starts_anew
        )
        for summed in (False, True)
    )
    assert pairs == sums
