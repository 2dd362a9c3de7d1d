"""One sync service from its start to its end: the composition root.

Knows clock, ports, store, runs and control link at once; the rest knows one of them each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import httpx
import structlog

from syncline_proto.compiled import compile_all
from syncline_proto.errors import SynclineError
from syncline_proto.locks import only_owner
from syncline_proto.rest import SyncServiceHello
from syncline_sync.aside import sweep_aside
from syncline_sync.budget import Budget
from syncline_sync.checkpoints import CheckpointServicer
from syncline_sync.control import ControlLink
from syncline_sync.disk import STOP_S, Disk, DiskHangs, check_is_there
from syncline_sync.host import Host
from syncline_sync.lull import Lull
from syncline_sync.metrics import Metrics
from syncline_sync.pins import sweep_pins
from syncline_sync.pool import shut_down
from syncline_sync.report_queue import ReportQueue
from syncline_sync.residence import Residence
from syncline_sync.seating import data_folder, take_seat
from syncline_sync.servicer import SyncServicer
from syncline_sync.serving import Doors, address, bind
from syncline_sync.settings import SyncSettings
from syncline_sync.shared import Shared
from syncline_sync.slabs import KEPT_BYTES, Slabs
from syncline_sync.supervisor import outlived
from syncline_sync.word import Word

log = structlog.get_logger()

SILENT_S = 1.0
"""What takes longer than this at the start is told."""

THREADS_S = 0.5
"""How long the end waits at least for threads whose work nobody waits for."""

LAST_REPORTS_S = 2.0
"""How long the end waits for the control plane to take what is queued."""


@dataclass(slots=True)
class End:
    """Why and when the process stops: a signal, the first error, or a parent that is gone."""

    came: asyncio.Event = field(default_factory=asyncio.Event)
    sign: signal.Signals | None = None
    error: BaseException | None = None

    @property
    def why(self) -> str:
        """The first error, for who is told that we end; empty where nothing went wrong."""
        if self.error is None:
            return ""
        return self.error.message if isinstance(self.error, SynclineError) else fault(self.error)

    def come(self, error: BaseException | None = None) -> None:
        if self.error is None:
            self.error = error
        elif error is not None and error is not self.error:
            log.warning("there is another error; the first one ends it", error=str(error))
        self.came.set()

    def heed_signals(self) -> None:
        """Come with SIGTERM or SIGINT; the first one counts."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self._ask, sign)

    def _ask(self, sign: signal.Signals) -> None:
        self.sign = self.sign or sign
        self.come()


def fault(error: BaseException) -> str:
    """What is said of an error that nobody raised on purpose."""
    if isinstance(error, MemoryError) or "start new thread" in str(error):
        why = str(error) or type(error).__name__
        return f"there is no room ({why}); allow more memory (ulimit -v) and threads (ulimit -u)."
    return f"a fault of ours: {type(error).__name__}; see the log."


async def serve(settings: SyncSettings) -> signal.Signals | None:
    """Serve until SIGTERM or SIGINT, and return which; or until something is wrong for good.

    Raises:
        SynclineError: a port is taken, or the store refuses.
    """
    end = End()
    end.heed_signals()
    metrics = Metrics()
    pool = ThreadPoolExecutor(settings.threads or max(os.cpu_count() or 1, 4), "compute")
    residence: Residence | None = None
    lull = Lull()
    reports = ReportQueue(lambda: residence.fragments if residence else 0, lull)
    budget = Budget(settings.staging_bytes)
    metrics.staged.set_function(lambda: budget.used)
    disk = Disk()
    link: ControlLink | None = None
    shared = Shared(
        root=settings.data,
        pool=pool,
        disk=disk,
        budget=budget,
        metrics=metrics,
        report=reports.put,
        fail=end.come,
        slabs=Slabs(min(KEPT_BYTES, budget.limit), lambda: budget.limit - budget.used),
        seat=settings.seat,
        vote=lambda: link.hurry() if link else None,
        settled=lambda: reports.settled,
        lull=lull,
        is_replaced=lambda: link is not None and link.is_refused,
    )
    residence = Residence(shared)
    host = Host(residence, shared)
    checkpoints = CheckpointServicer(residence, shared)
    servicer = SyncServicer(host, residence, shared)
    doors = bind(settings, servicer, checkpoints, metrics, shared.fail)
    mine = _taken_up(settings)  # not earlier: a start in vain leaves no folder behind
    disk.watch(lambda: check_is_there(settings.data, mine))
    await _compile(shared, end)
    hello = SyncServiceHello(
        name=settings.own_name,
        index=settings.seat.index,
        shards=settings.shards,
        address=settings.advertise or address(settings.host, doors.port),
        instance=host.instance,
    )
    headers = {"authorization": f"Bearer {settings.token}"} if settings.token else {}
    async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
        snapshot = settings.data / "membership.json"
        link = ControlLink(
            client, settings.control, hello, host.follow, reports, snapshot, host.votes,
            host.tell_anew, disk.do_briefly,
        )  # fmt: skip
        works = [partial(_work, settings, host, link, doors, hello.address), residence.sweep]
        if settings.parent:
            works.append(lambda: _until_alone(settings, end))
        await _work_until(end, works)
        await _shut(doors, checkpoints, end)
        are_back = await _come_to_rest(residence, (pool, *disk.pools), settings.data, end)
        await link.send_last(LAST_REPORTS_S, end.why)
        if are_back:
            mine.close()  # else a thread may write still, and nobody else is to
    if end.error is not None:
        raise end.error
    log.info("ended")
    return end.sign


async def _work(
    settings: SyncSettings, host: Host, link: ControlLink, doors: Doors, at: str
) -> None:
    """Take up what is there, open the doors, and follow the control plane's word; for ever.

    Raises:
        StoreError: the disk refuses.
        RunUnknown: there is no run that could fall back.
    """
    if settings.fall_back:
        await host.fall_back(Word.of(settings.fall_back))
    try:
        await link.adopt_snapshot()
        await host.caught_up()  # who comes in finds all that was served before
        await doors.open()
        log.info("listening", address=at, data=str(settings.data), seat=str(settings.seat))
        await link.run()
    finally:
        await host.close()


async def _shut(doors: Doors, checkpoints: CheckpointServicer, end: End) -> None:
    """Take no more calls. What cannot be shut keeps nothing else from coming to rest."""
    shut, hanging = await asyncio.gather(doors.close(), checkpoints.close(), return_exceptions=True)
    for error in (shut, hanging):
        if isinstance(error, BaseException):
            end.come(error)
    for what in hanging if isinstance(hanging, list) else ():
        log.warning("a checkpoint's store does not answer; ending without it", left=what)


async def _come_to_rest(
    residence: Residence, pools: Iterable[ThreadPoolExecutor], data: Path, end: End
) -> bool:
    """Finish what is under way; whether no thread is left that may write still."""
    until_s = time.monotonic() + STOP_S
    try:
        await residence.stop()
    except Exception as error:
        end.come(error)
    # Of calls that were cut, too, a thread may be at the disk.
    try:
        are_back = shut_down(pools, max(THREADS_S, until_s - time.monotonic()))
    except RuntimeError as error:  # no thread can be started to wait for them
        end.come(error)
        return False
    if not are_back:
        end.come(DiskHangs(data, STOP_S))
    return are_back


async def _compile(shared: Shared, end: End) -> None:
    """Compile the arithmetic, for which the first round would wait; say so where that takes long.

    Not before the ports are ours: a start in vain ends at once, and in one sentence.
    """
    compiling = asyncio.ensure_future(shared.compute(compile_all))
    done, _ = await asyncio.wait({compiling}, timeout=SILENT_S)
    if not done:
        log.info("compiling the arithmetic, or loading it: up to a minute at a first start")
        asked = asyncio.ensure_future(end.came.wait())
        await asyncio.wait({compiling, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.cancel():
            log.info("ending, once that is compiled: nothing can break it off")
    await compiling


async def _work_until(end: End, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Let the process's own tasks run until its end comes, and see them ended."""
    tasks = [asyncio.create_task(_guard(work, end)) for work in works]
    await end.came.wait()
    why = end.sign.name if end.sign else type(end.error).__name__ if end.error else "alone"
    more = {"error": str(end.error)} if end.error else {}
    log.info("ending: no more calls are taken, commits are finished", why=why, **more)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _guard(work: Callable[[], Awaitable[None]], end: End) -> None:
    """Run a task of the process; its failure ends the process."""
    try:
        await work()
    except Exception as error:  # the outermost loop of this task
        end.come(error)


async def _until_alone(settings: SyncSettings, end: End) -> None:
    await outlived(settings.parent)
    end.come()


def _taken_up(settings: SyncSettings) -> IO[bytes]:
    """Make the store's folder this process's own until the answer is closed; tidy it.

    Raises:
        ConfigError: another process has it, or it is of another seat.
        StoreError: the disk refuses.
    """
    data = data_folder(settings.data)
    # A store has one writer.
    mine = only_owner(data / "lock", f"Another sync service keeps its store in {data}", "--data")
    take_seat(data, settings.seat.index, settings.shards)
    sweep_pins(data)
    sweep_aside(data)
    return mine
