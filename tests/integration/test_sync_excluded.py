"""Exclusions as a run's log has them: once for a replica, however many fragments and rounds."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np

from syncline_proto.reports import EventIn
from syncline_proto.settings import RunSettings
from syncline_testing.service import RUN, flat_layout, service

SETTINGS = RunSettings.model_validate({"strategy": "local-sgd", "codec": {"up": "fp32"}})


def test_exclusions_are_told_once_and_so_is_their_end(tmp_path: Path) -> None:
    """Whatever the number of fragments and rounds; the metric and the rounds have every one."""
    fragments = range(3)

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(10, len(fragments)), "a")
            for f in fragments:
                await s.offer(np.ones(10, np.float32), "a", fragment=f)
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
