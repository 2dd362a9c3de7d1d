"""Where a run stands is told again by a service that starts: nobody may have heard it before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from syncline_proto.reports import RoundReport
from syncline_proto.settings import RunSettings
from syncline_testing.service import Service, flat_layout, service

SIZE = 10
ALONE = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


def rounds(s: Service) -> list[RoundReport]:
    """The reports of rounds, in order, without how long they took."""
    told = [what for what in s.reports if isinstance(what, RoundReport)]
    return [one.model_copy(update={"seconds": 0.0}) for one in told]


def test_a_service_that_starts_tells_what_it_may_not_have_told_and_where_each_run_stands(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(SIZE), "a")
            zeros = np.zeros(SIZE, np.float32)
            await s.offer(zeros, "a")
            await s.push(zeros, "a", base_revision=0, tokens=7)
            while len(rounds(s)) < 2:
                await asyncio.sleep(0.01)
            before = rounds(s)
        async with service(tmp_path, ALONE) as again:
            await again.members({"a": 1})
            *retold, stands = rounds(again)
            assert retold == before, "none of it has been answered"
            assert (stands.revision, stands.committed_tokens, stands.kind) == (1, 7, "parameters")

    asyncio.run(scenario())
