"""Whatever settings are allowed, norms come, and a checkpoint says: decisions stay numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from syncline_proto.merging import LateSettings, OuterSettings, PenaltySettings
from syncline_proto.section import Section
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import merge
from syncline_sync.core.detector import NORM_LIMIT, Ema, ReplicaNorms, Statistics
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import Closing
from syncline_sync.saved import check_numbers, saved_from_json, saved_to_json
from syncline_testing.pure import whole_push
from syncline_testing.world import World

EXTREMES = (1e-320, 1e-300, 1e-30, 1e-17, 1e-9, 0.0, 0.5, 1.0, 2.0, 1e3, 1e30, 1e300)
NORMS = (0.0, 1e-300, 1e-30, 1e-9, 1.0, 3.0, 1e9, NORM_LIMIT, 2 * NORM_LIMIT, math.nan)
NUMBERS = (*NORMS, NORM_LIMIT**2, 1e200, 1e308, math.inf, -1.0)
PUSHES = st.tuples(st.sampled_from(NORMS), st.sampled_from((1, 64, 1 << 40)))


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
    rounds=st.lists(st.tuples(PUSHES, PUSHES), min_size=1, max_size=6),
)
def test_rounds_go_on_and_weights_are_numbers(
    penalty: dict[str, Any],
    outer: dict[str, Any],
    late: dict[str, Any],
    asynchronous: bool,
    sync_every: int,
    rounds: list[tuple[tuple[float, int], ...]],
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


AVERAGES = st.builds(
    Ema,
    count=st.integers(0, 3),
    first=st.sampled_from(NUMBERS),
    second=st.sampled_from(NUMBERS),
    bias=st.sampled_from((0.0, 0.5, math.nextafter(1.0, 0.0), 1.0, math.nan)),
)
REPLICAS = st.builds(
    ReplicaNorms,
    ema=AVERAGES,
    rounds=st.integers(0, 20),
    excluded=st.lists(st.sampled_from(NUMBERS), max_size=3).map(tuple),
)


@settings(max_examples=200, deadline=None)
@given(
    statistics=st.builds(
        Statistics,
        pooled=AVERAGES,
        norms=AVERAGES,
        rounds=st.integers(0, 20),
        bad_rounds=st.integers(0, 3),
        replicas=st.fixed_dictionaries({"a": REPLICAS}),
    ),
    norms=st.lists(st.sampled_from(NORMS), min_size=1, max_size=3),
)
@example(
    statistics=Statistics(pooled=Ema(1, 1e200, 1e200, 0.5), norms=Ema(), rounds=1, replicas={}),
    norms=[1.0],
)
@example(
    statistics=Statistics(replicas={"a": ReplicaNorms(Ema(0, 0.0, 1e-300, 0.0), rounds=9)}),
    norms=[0.0, 1e-30],
)
def test_a_run_from_a_checkpoint_whose_numbers_are_taken_goes_on(
    statistics: Statistics, norms: list[float]
) -> None:
    world = World("a", min_replicas=1)
    saved = replace(world.core.saved, statistics=statistics).restored()
    try:
        check_numbers(saved)
    except ValueError:
        return
    core = Fragment(world.settings, saved)
    core.adopt(0.0, {"a": 1}, world.settings, True, {"a"})
    for seq, norm in enumerate(norms, 1):
        base = core.saved.revision
        core.judge(0.0, whole_push("a", incarnation=1, seq=seq, base=base, norm=norm))
        while (why := core.due(0.0)) is not None:
            assert 0.0 <= core.close(why).total_weight < math.inf
