"""Pushes that do not count: what is answered, what the others get, and how often it is told."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.reports import EventIn, RoundReport
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import RUN, flat_layout, service

SIZE = 600_000  # several chunks
AVERAGE = RunSettings.model_validate(
    {"strategy": "local-sgd", "min_replicas": 2, "codec": {"up": "fp32", "down": "fp32"}}
)
ALONE = AVERAGE.model_copy(update={"min_replicas": 1})


def test_exclusions_are_told_once_and_so_is_their_end(tmp_path: Path) -> None:
    """Whatever the number of fragments and rounds; the metric and the rounds have every one."""
    fragments = range(3)

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(10, len(fragments)), "a")
            for f in fragments:
                await s.offer(np.full(10, 1.0, np.float32), "a", fragment=f)
            for revision, value in enumerate([math.nan, math.nan, 0.5]):
                for f in fragments:
                    values = np.full(10, value, np.float32)
                    await s.push(values, "a", fragment=f, base_revision=revision)
                    await s.pull(fragment=f, revision=revision + 1, header_only=True)
            events = [e for e in s.reports if isinstance(e, EventIn)]
            assert [(e.kind, e.replica) for e in events] == [
                ("push.excluded", "a"), ("push.counts", "a"),
            ]  # fmt: skip
            assert events[0].message == (
                "fragment f0: a does not count: its values are not finite. No more is said of it "
                "until all its pushes count again; the rounds tell of each."
            )
            assert events[1].message.endswith("after 6 that did not.")
            told = {"run": RUN, "verdict": "anomalous"}
            registry = s.shared.metrics.registry
            assert registry.get_sample_value("syncline_pushes_total", told) == 6.0

    asyncio.run(scenario())


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_poison_counts_for_nothing_and_is_told(tmp_path: Path, poison: float) -> None:
    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await s.members({"a": 1, "b": 1})
            for replica in ("a", "b"):
                await s.open(flat_layout(SIZE), replica)
            await s.offer(np.full(SIZE, 1.0, np.float32), "a")
            values = np.full(SIZE, 0.5, np.float32)
            values[SIZE // 2] = poison
            bad = await s.push(values, "a", base_revision=0)
            assert (bad.verdict, bad.non_finite) == (pb.VERDICT_ANOMALOUS, True)
            assert bad.residual == pb.RESIDUAL_ACTION_CLEAR
            await s.push(np.full(SIZE, 0.25, np.float32), "b", base_revision=0)
            header, merged = await s.pull(revision=1)
            assert np.array_equal(merged, np.full(SIZE, 0.75, np.float32))
            assert [c.weight for c in header.contributions] == [0.0, 1.0]
            report = [r for r in s.reports if isinstance(r, RoundReport)][-1]
            assert report.contributions[0].norm is None
            assert report.contributions[0].verdict == "anomalous"
            events = [e for e in s.reports if isinstance(e, EventIn)]
            assert [(e.kind, e.replica) for e in events] == [("push.excluded", "a")]
            again = await s.push(values, "a", base_revision=0, seq=s.seqs["a", 1, 0])
            assert (again.verdict, again.non_finite) == (pb.VERDICT_DUPLICATE, True)
            told = {"run": RUN, "verdict": "duplicate"}
            registry = s.shared.metrics.registry
            assert registry.get_sample_value("syncline_pushes_total", told) == 1.0

    asyncio.run(scenario())
