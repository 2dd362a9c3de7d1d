"""The stages that are measured one by one are a round: they end in what was published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stages import Stages, summary
from syncline_proto.codec import CODEC_BY_NAME, published

NUMEL = 5_000


@pytest.mark.parametrize("up", ["bf16", "int8", "topk"])
@pytest.mark.parametrize("down", ["fp32", "bf16", "int8"])
def test_after_them_the_model_holds_what_was_published(tmp_path: Path, up: str, down: str) -> None:
    stages = Stages(tmp_path, NUMEL, up, down)
    before = stages.parameters.copy()
    for number in range(1, 4):
        stages.round()
        values = stages.model[0].numpy()
        if down == "int8":
            assert np.array_equal(values.view(np.uint32) >> 16, stages.published)
            assert np.allclose(values, stages.parameters, atol=0.02)
        else:
            expected = published(stages.parameters, CODEC_BY_NAME[down])
            assert np.array_equal(values, expected)
        loaded = stages.store.load()
        assert loaded is not None and loaded.saved.revision == number
        assert np.array_equal(loaded.parameters, stages.parameters)
    assert not np.array_equal(before, stages.parameters)
    told = summary(stages.times, NUMEL)
    assert len({tuple(by_stage) for by_stage in told.values()}) == 1, "all of every stage"
    assert all(seconds > 0 for seconds in told["seconds"].values())


def test_a_median_is_of_all_rounds_but_the_first() -> None:
    told = summary({"fold": [(9.0, 9.0), (1.0, 2.0), (3.0, 2.5), (2.0, 4.0)]}, 500_000_000)
    assert told["seconds"] == {"fold": 2.0} and told["cpu_seconds"] == {"fold": 2.5}
    assert told["gb_per_s"] == {"fold": 1.0}
