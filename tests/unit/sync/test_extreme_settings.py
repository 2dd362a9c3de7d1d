"""Whatever settings are allowed, and whatever norms come: a fragment's decisions stay numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from syncline_proto.merging import LateSettings, OuterSettings, PenaltySettings
from syncline_proto.section import Section
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import merge
from syncline_sync.core.detector import NORM_LIMIT
from syncline_sync.core.record import Closing
from syncline_sync.saved import saved_from_json, saved_to_json
from syncline_testing.world import World

EXTREMES = (1e-320, 1e-300, 1e-30, 1e-17, 1e-9, 0.0, 0.5, 1.0, 2.0, 1e3, 1e30, 1e300)
NORMS = st.sampled_from(
    (0.0, 1e-300, 1e-30, 1e-9, 1.0, 3.0, 1e9, NORM_LIMIT, 2 * NORM_LIMIT, math.nan)
)


def allowed(kind: type[Section], **fixed: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Any of a group's numbers, as far as each is allowed by itself."""

    def is_allowed(name: str, value: float) -> bool:
        try:
            kind.model_validate({name: value})
        except ValidationError:
            return False
        return True

    choices = {
        name: [x for x in EXTREMES if is_allowed(name, x)]
        for name, field in kind.model_fields.items()
        if isinstance(field.default, float) or field.annotation == float | None
    }
    drawn = {name: st.sampled_from(found) for name, found in choices.items()}
    return st.fixed_dictionaries({n: st.just(v) for n, v in fixed.items()}, optional=drawn)


@settings(max_examples=200, deadline=None)
@given(
    penalty=allowed(PenaltySettings),
    outer=allowed(OuterSettings),
    late=allowed(LateSettings, age_max=1),
    asynchronous=st.booleans(),
    sync_every=st.sampled_from((1, 1_000_000)),
    rounds=st.lists(
        st.lists(st.tuples(NORMS, st.sampled_from((1, 64, 1 << 40))), min_size=2, max_size=2),
        min_size=1,
        max_size=6,
    ),
)
def test_rounds_go_on_and_weights_are_numbers(
    penalty: dict[str, Any],
    outer: dict[str, Any],
    late: dict[str, Any],
    asynchronous: bool,
    sync_every: int,
    rounds: list[list[tuple[float, int]]],
) -> None:
    world = World(
        "a",
        "b",
        penalty=penalty,
        outer=outer,
        late=late,
        sync_every=sync_every,
        **({"strategy": "async", "min_replicas": 1} if asynchronous else {}),
    )
    for pushes in rounds:
        for replica, (norm, steps) in zip("ab", pushes, strict=True):
            judged = world.push(replica, norm=norm, inner_steps=steps)
            assert 0.0 <= judged.weight < math.inf and 0.0 <= judged.rescale <= 1.0
            assert judged.weight * norm < 3e38 or not judged.weight
            while (why := world.core.due(world.now_s)) is not None:
                closing = world.core.close(why)
                assert 0.0 <= closing.total_weight < math.inf
                accepted = [
                    c for c in closing.saved.contributions if c.verdict == pb.VERDICT_ACCEPTED
                ]
                assert bool(accepted) <= (closing.total_weight > 0.0)
                assert all(0.0 <= c.weight < math.inf for c in closing.saved.contributions)
                if accepted:
                    step(closing)
                kept = saved_from_json(saved_to_json(closing.saved))
                assert kept.statistics == closing.saved.statistics


def step(closing: Closing) -> None:
    """The outer step that it leads to leaves numbers."""
    theta, v, acc = (np.full(3, x, np.float32) for x in (1.0, 0.5, 0.25))
    with np.errstate(all="ignore"):
        outcome = merge.outer_step(
            theta, v, acc, closing.total_weight, closing.outer, closing.carry
        )
    assert math.isfinite(outcome.clip) and np.isfinite(acc).all() and np.isfinite(v).all()
