"""What the benchmark of pushes beside one another says of its figures."""

from __future__ import annotations

import pytest

import beside


def test_a_share_is_of_all_pushes_and_the_first_round_does_not_count() -> None:
    alone = [(9.0, 9.0), (1.0, 0.5), (3.0, 1.0), (2.0, 0.75)]
    both = [(9.0, 9.0), (3.0, 1.0), (4.0, 3.0), (5.0, 2.0)]
    told = beside.summary({1: alone, 2: both}, take=0.25)
    assert told["seconds"] == {1: 2.0, 2: 4.0}
    assert told["cpu_seconds"] == {1: 0.75, 2: 2.0}
    assert told["loop_share"] == {1: 0.125, 2: 0.125}
    assert told["beside"] == {1: 1.0, 2: 2.0}
    assert told["take_seconds"] == 0.25


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_what_the_loop_takes_is_measured_of_every_chunk(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards: list[beside.Shard] = []

    class Kept(beside.Shard):
        def free(self) -> None:
            shards.append(self)

    monkeypatch.setattr(beside, "Shard", Kept)
    assert beside.take_seconds(1_500_000, codec, repeats=2) > 0.0
    assert len(shards) == 3 and all(shard.whole for shard in shards)
