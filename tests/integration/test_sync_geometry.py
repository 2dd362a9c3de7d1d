"""Directions instead of sums, through the real service: averaged radially, turned to the momentum.

The formulas have tests of their own; here it is that they reach a fragment's tensors, one by one,
with the penalty's weights, and leave embeddings alone.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline_proto.codec import Float32
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.reports import RoundReport
from syncline_proto.settings import RunSettings
from syncline_sync.core import direction
from syncline_testing.service import service

SIZES = (6, 10)
EDGES = (0, 6, 16)
NAMES = ("embeddings", "blocks.0")
LAYOUT = Layout(
    tuple(TensorSpec(f"{name}.{size}", (size,), "float32") for name in NAMES for size in SIZES),
    tuple(
        FragmentSpec(name, (Box(2 * i, (0,), (SIZES[0],)), Box(2 * i + 1, (0,), (SIZES[1],))))
        for i, name in enumerate(NAMES)
    ),
)
ROUNDS = 3
TEMPERATURE = 6.0
"""At which the shorter push of a round has about two thirds of the weight."""


def settings(**outer: Any) -> RunSettings:
    return RunSettings.model_validate(
        {
            "strategy": "edit-paper",
            "min_replicas": 2,
            "penalty": {"temperature": TEMPERATURE},
            "outer": {"lr": 0.5, "momentum": 0.9, "clip": None, **outer},
            "codec": {"up": "fp32", "down": "fp32"},
        }
    )


def pushes() -> list[tuple[Float32, Float32]]:
    """Of two replicas, in each round: more against one another than not."""
    rng = np.random.default_rng(0)
    common, mine, its = rng.standard_normal((3, ROUNDS, EDGES[-1])).astype(np.float32)
    return [(0.3 * c + a, 0.3 * c + 2 * b) for c, a, b in zip(common, mine, its, strict=True)]


def by_tensor(*arrays: Float32) -> list[list[Float32]]:
    return [[array[a:b] for array in arrays] for a, b in pairwise(EDGES)]


def shares(a: Float32, b: Float32) -> tuple[float, float]:
    """Of two pushes, by the penalty."""
    x, y = (float(np.exp(-np.linalg.norm(push) / TEMPERATURE)) for push in (a, b))
    return x / (x + y), y / (x + y)


def radial(a: Float32, b: Float32) -> Float32:
    out, (p, q) = [], shares(a, b)
    for x, y in by_tensor(a, b):
        sizes = np.linalg.norm(x), np.linalg.norm(y)
        u = p * x / sizes[0] + q * y / sizes[1]
        out.append((p * sizes[0] + q * sizes[1]) * u / np.linalg.norm(u))
    return np.concatenate(out)


def averaged(a: Float32, b: Float32) -> Float32:
    p, q = shares(a, b)
    return (p * a + q * b).astype(np.float32)


def expected(given: RunSettings, is_embedding: bool) -> Float32:
    """Where the rounds lead, by hand from 0."""
    outer, theta, m = given.outer, np.zeros(EDGES[-1]), np.zeros(EDGES[-1])
    for number, (a, b) in enumerate(pushes()):
        is_radial = outer.average == "radial" and not is_embedding
        d = radial(a, b) if is_radial else averaged(a, b)
        if outer.restart_every and number % outer.restart_every == 0:
            m = np.zeros(EDGES[-1])
        if outer.direction.enabled:
            turned, momentum = d.astype(np.float32), m.astype(np.float32)
            direction.correct(turned, momentum, 1.0, EDGES, outer.direction)
            d = turned
        m = outer.momentum * m + d
        theta = theta - outer.lr * (d + outer.momentum * m)
    return theta.astype(np.float32)


@pytest.mark.parametrize(
    "outer",
    [
        {"average": "radial"},
        {"direction": {"enabled": True}},
        {"direction": {"enabled": True}, "restart_every": 2},
        {"average": "radial", "direction": {"enabled": True, "agree": 0.9}},
    ],
    ids=str,
)
def test_rounds_go_where_the_formulas_lead(tmp_path: Path, outer: dict[str, Any]) -> None:
    given = settings(**outer)
    results: list[Float32] = []

    async def scenario() -> None:
        async with service(tmp_path, given) as s:
            await s.members({"a": 1, "b": 1})
            for replica in ("a", "b"):
                await s.open(LAYOUT, replica)
            for fragment, name in enumerate(NAMES):
                boxes = [box.to_proto() for box in LAYOUT.fragments[fragment].boxes]
                where: dict[str, Any] = {"fragment": fragment, "boxes": boxes}
                await s.offer(np.zeros(EDGES[-1], np.float32), "a", **where)
                for number, (mine, its) in enumerate(pushes()):
                    base: dict[str, Any] = {**where, "base_revision": number}
                    await asyncio.gather(s.push(mine, "a", **base), s.push(its, "b", **base))
                header, values = await s.pull(revision=ROUNDS, fragment=fragment, boxes=boxes)
                assert header.revision == ROUNDS
                assert np.allclose(values, expected(given, name == "embeddings"), atol=1e-5)
                results.append(values)
            rounds = [r for r in s.reports if isinstance(r, RoundReport)]
            reports = [r for r in rounds if r.kind == "pseudo-gradient"]
            turned = {r.revision for r in reports if r.momentum_cosine is not None}
            could = {2} if given.outer.restart_every else {2, 3}
            assert turned == (could if given.outer.direction.enabled else set())

    asyncio.run(scenario())
    same = np.allclose(results[0], results[1], atol=1e-3)
    assert same != (given.outer.average == "radial"), "embeddings are averaged plainly"
