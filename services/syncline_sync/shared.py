"""What all runs of the process share: threads, memory, the disk, and ways to be heard.

Made once, in process.py; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from syncline_proto.owners import Seat
from syncline_sync.budget import Budget
from syncline_sync.disk import Disk
from syncline_sync.lull import Lull
from syncline_sync.metrics import Metrics
from syncline_sync.pool import P, T, compute
from syncline_sync.report_queue import Told
from syncline_sync.slabs import Slabs

Report = Callable[[str, Told], int]
"""(run, what): goes to the control plane when it can; its ticket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all runs of the process share."""

    root: Path
    pool: ThreadPoolExecutor
    disk: Disk
    budget: Budget
    metrics: Metrics
    report: Report
    fail: Callable[[BaseException], None]
    slabs: Slabs
    """Memory of pushes in flight."""
    seat: Seat
    """Which fragments of every run are ours."""
    vote: Callable[[], None]
    """How a run's synchronous phase stands has changed: the control plane should hear of it."""
    settled: Callable[[], int]
    """Reports of lower tickets need not be told again."""
    lull: Lull
    """For what need not be done at once."""
    is_replaced: Callable[[], bool]
    """Whether the control plane knows another service by our name."""

    async def compute(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run heavy work in the pool."""
        return await compute(self.pool, work, *args, **kwargs)

    async def at_disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Write, or read all of a run, where it holds up nobody's arithmetic."""
        return await self.disk.do(work, *args, **kwargs)
