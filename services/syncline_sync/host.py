"""The runs that this process serves: made from the control plane's word or from the store.

One loop owns everything here. A run's fragments start when its layout is known: from the store at
once, otherwise with the first replica that opens the run.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from syncline_proto.errors import LayoutMismatch, LeaseLost, RunUnknown
from syncline_proto.layout import Layout, difference
from syncline_proto.rest import EventIn, Membership, RoundReport, RunMembership, RunState
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.metrics import Metrics
from syncline_sync.pool import P, T, compute
from syncline_sync.runner import Adopt, Runner, Stored, Surroundings
from syncline_sync.staging import Staging
from syncline_sync.store import RunStore

log = structlog.get_logger()

MEMBER_WAIT_S = 10.0
"""How long a new replica's call waits for the control plane's word of it to arrive here."""

ENDED_KEPT_S = 600.0
"""An ended run stays in memory this long, for its last pulls and its export."""

ENDED_MAX = 16
"""Ended runs in memory at once; the one that was asked for the longest ago is put away first."""

SWEEP_S = 30.0

Report = Callable[[str, RoundReport | EventIn], None]
"""(run, what): goes to the control plane when it can."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all runs of the process share."""

    root: Path
    pool: ThreadPoolExecutor
    budget: Budget
    metrics: Metrics
    report: Report
    fail: Callable[[BaseException], None]

    async def compute(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run heavy work in the pool."""
        return await compute(self.pool, work, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Recalled:
    """What the store has of a run; nothing if no replica has ever opened it."""

    layout: Layout | None
    fragments: tuple[Stored, ...]

    @classmethod
    def read(cls, store: RunStore) -> Recalled:
        """Heavy where there is something: call it in the pool.

        Raises:
            StoreDamaged: a file is missing, short, or fails its checksum; the message names it.
        """
        if not store.exists:
            return cls(None, ())
        layout = store.load_layout()
        return cls(layout, _stored(store, layout))


def _stored(store: RunStore, layout: Layout) -> tuple[Stored, ...]:
    return tuple(Stored.read(store.fragment(i)) for i in range(len(layout.fragments)))


class RunHost:
    """One run: its layout, its fragments, the pushes on their way in."""

    def __init__(
        self, name: str, settings: RunSettings, recalled: Recalled, shared: Shared
    ) -> None:
        self.name = name
        self.settings = settings
        self.members: Mapping[str, int] = {}
        self.ended_at_s: float | None = time.monotonic()
        """Since when the control plane does not name it; None while it does."""
        self.asked_at_s = time.monotonic()
        self.layout: Layout | None = None
        self.fingerprint = ""
        self.staging: Staging | None = None
        self.runners: list[Runner] = []
        self.metrics = shared.metrics.of(name)
        self._shared = shared
        self._store = RunStore(shared.root, name)
        self._running = True
        if recalled.layout is not None:
            self._start(recalled.layout, recalled.fragments)

    def adopt(self, membership: RunMembership) -> None:
        """Take over members, settings and state; every fragment hears of it in its own order."""
        settings = membership.settings
        if settings != self.settings or not self._store.has_settings:
            self._store.save_settings(settings)
        self.settings = settings
        self.members = {m.replica: m.incarnation for m in membership.members}
        self._running = membership.state is RunState.RUNNING
        self.ended_at_s = None
        self._spread()

    def end(self, now_s: float) -> None:
        """The control plane does not name the run any more: nobody is a member."""
        if self.ended_at_s is None:
            self.ended_at_s, self.members, self._running = now_s, {}, False
            self._spread()

    def open(self, layout: Layout) -> None:
        """Set the run's layout, or compare with it.

        Raises:
            LayoutMismatch: it differs; the message names the first difference.
        """
        if self.layout is None:
            self._store.save_layout(layout)
            self._start(layout, _stored(self._store, layout))
            self._spread()
        elif layout.fingerprint() != self.fingerprint:
            raise LayoutMismatch(
                f"This model is not the one of run {self.name}: "
                f"{difference(self.layout, layout)} Train the run's model, or start another run."
            )

    def states(self) -> list[pb.FragmentState]:
        """Where every fragment stands, as published."""
        return [
            pb.FragmentState(
                fragment=r.number,
                initialised=r.revisions.newest is not None,
                revision=r.latest.revision,
                gradient_step=r.latest.gradient_step,
                committed_tokens=r.latest.committed_tokens,
                arrived=r.core.arrived,
                expected=r.core.expected,
            )
            for r in self.runners
        ]

    async def stop(self) -> None:
        await asyncio.gather(*(runner.stop() for runner in self.runners))

    def _start(self, layout: Layout, fragments: Sequence[Stored]) -> None:
        self.layout, self.fingerprint = layout, layout.fingerprint()
        self.staging = Staging(layout, self._shared.budget)
        around = Surroundings(
            run=self.name,
            staging=self.staging,
            pool=self._shared.pool,
            metrics=self.metrics,
            tell_round=lambda report: self._shared.report(self.name, report),
            tell=lambda event: self._shared.report(self.name, event),
            fail=self._shared.fail,
        )
        self.runners = [
            Runner(i, spec.name, spec.numel, self.settings, stored, around)
            for i, (spec, stored) in enumerate(zip(layout.fragments, fragments, strict=True))
        ]

    def _spread(self) -> None:
        self.metrics.members(set(self.members))
        if self.staging is not None:
            self.staging.fence(
                lambda f, r, incarnation: self.runners[f].core.fenced(self.members, r, incarnation)
            )
        for runner in self.runners:
            runner.adopt(Adopt(self.members, self.settings, self._running))


class Host:
    """All runs of the process."""

    def __init__(self, shared: Shared) -> None:
        self.instance = uuid.uuid4().hex
        self._shared = shared
        self._runs: dict[str, RunHost] = {}
        self._loads: dict[str, asyncio.Task[RunHost]] = {}
        """One at a time for a run: two would write to the same files."""
        self._changed = asyncio.Event()

    async def follow(self, membership: Membership) -> None:
        """``adopt``, once every run that it names has been read from the store."""
        while missing := [r for r in membership.runs if r.run not in self._runs]:
            await asyncio.gather(*(self._loaded(r.run, r.settings) for r in missing))
        self.adopt(membership)

    def adopt(self, membership: Membership) -> None:
        """Take over the control plane's word on every run that has not ended."""
        now_s = time.monotonic()
        for run in membership.runs:
            host = self._runs.get(run.run)
            if host is None:
                recalled = Recalled.read(RunStore(self._shared.root, run.run))
                host = RunHost(run.run, run.settings, recalled, self._shared)
                self._runs[run.run] = host
            if host.ended_at_s is not None:
                log.info("run", run=run.run, state=run.state, known=host.layout is not None)
            host.adopt(run)
        named = {run.run for run in membership.runs}
        for host in self._runs.values():
            if host.name not in named:
                host.end(now_s)
        self._shared.metrics.runs.set(len(self._runs))
        self._changed.set()
        self._changed = asyncio.Event()

    async def sweep(self) -> None:
        """Free the memory of runs that ended long ago, for ever; their files stay."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await self._put_away()

    async def _put_away(self) -> None:
        """Free the ended runs that are too many, or have been kept long enough."""
        kept_from_s = time.monotonic() - ENDED_KEPT_S
        ended = [host for host in self._runs.values() if host.ended_at_s is not None]
        ended.sort(key=lambda host: host.asked_at_s, reverse=True)
        gone = [
            host
            for place, host in enumerate(ended)
            if place >= ENDED_MAX or (host.ended_at_s or 0.0) < kept_from_s
        ]
        for host in gone:
            del self._runs[host.name]
        await asyncio.gather(*(host.stop() for host in gone))

    async def member(self, run: str, replica: str, incarnation: int) -> RunHost:
        """The run, once this replica is known to hold its lease.

        Waits a little: a replica that has just registered may be here before the word of it.

        Raises:
            RunUnknown: there is no such run.
            LeaseLost: another incarnation holds the lease, or nobody does.
        """
        deadline = time.monotonic() + MEMBER_WAIT_S
        while True:
            host = self._runs.get(run)
            holder = host.members.get(replica, 0) if host else 0
            if host is not None and holder == incarnation:
                return host
            left = deadline - time.monotonic()
            if left <= 0.0 or holder > incarnation:
                break
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), left)
            except TimeoutError:
                continue
        if host is None:
            raise RunUnknown(f"There is no run {run} that goes on; create it first.")
        raise LeaseLost(
            f"{replica} (incarnation {incarnation}) holds no lease in {run}; register again."
        )

    async def run(self, name: str) -> RunHost:
        """The run, for anybody: from memory, or an ended one from the store.

        Raises:
            RunUnknown: neither knows it.
        """
        host = self._runs.get(name)
        if host is None:
            store = RunStore(self._shared.root, name)
            if not store.exists or not store.has_settings:
                raise RunUnknown(f"There is no run {name} here.")
            host = await self._loaded(name, store.load_settings())
            await self._put_away()
        host.asked_at_s = time.monotonic()
        return host

    async def _loaded(self, name: str, settings: RunSettings) -> RunHost:
        """The run, read from the store in the pool; whoever else asks meanwhile gets the same."""
        task = self._loads.get(name)
        if task is None:
            task = self._loads[name] = asyncio.create_task(self._load(name, settings))
        return await asyncio.shield(task)  # who stops waiting does not stop the others

    async def _load(self, name: str, settings: RunSettings) -> RunHost:
        try:
            recalled = await self._shared.compute(Recalled.read, RunStore(self._shared.root, name))
            host = self._runs[name] = RunHost(name, settings, recalled, self._shared)
            return host
        finally:
            del self._loads[name]

    async def stop(self) -> None:
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await asyncio.gather(*(host.stop() for host in self._runs.values()))
