"""What a fragment holds, over a folder; the end of its rounds as the core would tell them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from syncline_proto.codec import Float32
from syncline_proto.merging import OuterSettings
from syncline_sync.core.merge import Outcome, Weighed
from syncline_sync.core.record import ClosedBy, Closing, Kind, Saved
from syncline_sync.disk import Disk
from syncline_sync.entries import Place
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.holding import Holding
from syncline_sync.lull import Lull
from syncline_sync.shelf import Loan
from syncline_sync.sources import Spans
from syncline_sync.stored import Stored
from syncline_testing.pure import payload_of

NUMEL = 5_000
WHOLE: Spans = np.array([[0, NUMEL]], np.int64)
PLACE = Place(run="run", fragment=0, layout="layout", numel=NUMEL)
AVERAGE = OuterSettings(lr=1.0, momentum=0.0, clip=None)


def values(seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(NUMEL).astype(np.float32)


class Fragment:
    """A holding over a folder, and the end of its rounds as the core would tell them."""

    def __init__(
        self, folder: Path, pool: ThreadPoolExecutor, down: str, behind: bool = False
    ) -> None:
        self.pool, self.down, self.behind = pool, down, behind
        folder.mkdir(exist_ok=True)  # the run's
        self.store = FragmentStore(folder / "00000", PLACE)
        stored = Stored.read(self.store)
        self.faults: list[BaseException] = []
        self.lull = Lull()
        self.holding = Holding(
            number=0,
            edges=(0, NUMEL),
            stored=stored,
            pool=pool,
            disk=Disk(),  # its threads end with it
            lull=self.lull,
            commit_seconds=contextlib.nullcontext,
            fail=self.faults.append,
        )
        self.outer = AVERAGE
        self.direction_scale: float | None = None
        self.outcome: Outcome | None = None
        """Of the last round's outer step."""
        self.revision = -1 if stored.saved is None else stored.saved.revision

    async def offer(self, given: Float32) -> None:
        await self.holding.place([payload_of(given)])
        await self._finish(Kind.PARAMETERS, 1.0)

    async def round(self, *pushes: Float32) -> None:
        for push in pushes:
            await self.fold(push)
        await self.close(float(len(pushes)))

    async def close(self, total: float) -> None:
        """End a round of so much weight."""
        await self._finish(Kind.PSEUDO_GRADIENT, total)

    async def fold(self, push: Float32) -> None:
        await self.holding.fold(Weighed([payload_of(push)], 1.0, 1.0), lambda: None)

    async def gradient(self, step: int, given: Float32) -> None:
        await self.fold(given)
        await self._finish(Kind.GRADIENT, 2.0, gradient_step=step)

    async def read(self, revision: int | None, spans: Spans = WHOLE) -> bytes:
        value = await self.holding.revisions.get(revision)
        with Loan(self.holding.revisions, value.saved.revision, value) as loan:
            return bytes(await loan.read(spans, self.pool, self.pool))

    async def left(self) -> list[bytes]:
        """End it; what the disk has then: parameters, momentum, and what is sent by difference."""
        await self.holding.end()
        stored = self.store.load()
        assert stored is not None
        arrays = stored.parameters, stored.momentum, stored.published
        return [b"" if array is None else array.tobytes() for array in arrays]

    def _told(self, outcome: Outcome | None) -> list[str]:
        self.outcome = outcome
        return []

    async def _finish(self, kind: Kind, total: float, **saved: Any) -> None:
        self.revision += kind is not Kind.GRADIENT
        await self.holding.finish(
            Closing(
                kind=kind,
                closed_by=ClosedBy.EVERYONE,
                total_weight=total,
                outer=self.outer,
                carry=None,
                saved=Saved(revision=self.revision, down=self.down, **saved),
                opened_s=0.0,
                effective_sample_size=None,
                behind=self.behind and kind is Kind.PSEUDO_GRADIENT,
                direction_scale=self.direction_scale,
            ),
            self._told,
        )


def run(
    folder: Path,
    scenario: Callable[[Fragment], Awaitable[None]],
    down: str = "bf16",
    behind: bool = False,
) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(2) as pool:
            await scenario(Fragment(folder, pool, down, behind))

    asyncio.run(main())
