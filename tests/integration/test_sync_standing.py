"""Where a run stands is told again by a service that starts: nobody may have heard it before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from syncline_proto.rest import RoundReport
from syncline_proto.settings import RunSettings
from syncline_testing.service import Service, flat_layout, service

SIZE = 10
ALONE = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


def told(s: Service) -> list[tuple[int, int, int]]:
    """(fragment, revision, committed tokens) of the reports of rounds, in order."""
    rounds = [what for what in s.reports if isinstance(what, RoundReport)]
    return [(one.fragment, one.revision, one.committed_tokens) for one in rounds]


def test_a_service_that_starts_tells_where_each_run_stands(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(SIZE), "a")
            zeros = np.zeros(SIZE, np.float32)
            await s.offer(zeros, "a")
            await s.push(zeros, "a", base_revision=0, tokens=7)
            while len(told(s)) < 2:
                await asyncio.sleep(0.01)
            before = told(s)
        async with service(tmp_path, ALONE) as again:
            await again.members({"a": 1})
            assert told(again) == before[-1:] == [(0, 1, 7)]

    asyncio.run(scenario())
