"""The runs that this process serves: made from the control plane's word or from the store.

One loop owns everything here. A run's fragments start when its layout is known: from the store at
once, otherwise with the first replica that opens the run.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
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
from syncline_sync.runner import Adopt, Runner, Surroundings
from syncline_sync.staging import Staging
from syncline_sync.store import RunStore

log = structlog.get_logger()

MEMBER_WAIT_S = 10.0
"""How long a new replica's call waits for the control plane's word of it to arrive here."""

ENDED_KEPT_S = 600.0
"""An ended run stays in memory this long, for its last pulls and its export."""

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


class RunHost:
    """One run: its layout, its fragments, the pushes on their way in."""

    def __init__(self, name: str, settings: RunSettings, shared: Shared) -> None:
        self.name = name
        self.settings = settings
        self.members: Mapping[str, int] = {}
        self.ended_at_s: float | None = None
        self.layout: Layout | None = None
        self.fingerprint = ""
        self.staging: Staging | None = None
        self.runners: list[Runner] = []
        self.metrics = shared.metrics.of(name)
        self._shared = shared
        self._store = RunStore(shared.root, name)
        self._running = True
        if self._store.exists:
            self._start(self._store.load_layout())

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
            self._start(layout)
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

    def _start(self, layout: Layout) -> None:
        self.layout, self.fingerprint = layout, layout.fingerprint()
        self.staging = Staging(layout, self._shared.budget)
        around = Surroundings(
            run=self.name,
            staging=self.staging,
            pool=self._shared.pool,
            metrics=self.metrics,
            tell_round=lambda report: self._shared.report(self.name, report),
            tell=lambda kind, text: self._shared.report(
                self.name, EventIn(kind=kind, message=text)
            ),
            fail=self._shared.fail,
        )
        self.runners = [
            Runner(i, spec.name, spec.numel, self.settings, self._store.fragment(i), around)
            for i, spec in enumerate(layout.fragments)
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
        self._changed = asyncio.Event()

    def adopt(self, membership: Membership) -> None:
        """Take over the control plane's word on every run that has not ended."""
        now_s = time.monotonic()
        for run in membership.runs:
            host = self._runs.get(run.run)
            if host is None:
                host = self._runs[run.run] = RunHost(run.run, run.settings, self._shared)
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
            now_s = time.monotonic()
            for name, host in list(self._runs.items()):
                if host.ended_at_s is not None and now_s - host.ended_at_s > ENDED_KEPT_S:
                    del self._runs[name]
                    await host.stop()

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

    def run(self, name: str) -> RunHost:
        """The run, for anybody: from memory, or an ended one from the store.

        Raises:
            RunUnknown: neither knows it.
        """
        host = self._runs.get(name)
        if host is None:
            store = RunStore(self._shared.root, name)
            if not store.exists or not store.has_settings:
                raise RunUnknown(f"There is no run {name} here.")
            host = self._runs[name] = RunHost(name, store.load_settings(), self._shared)
            host.end(time.monotonic())
        return host

    async def stop(self) -> None:
        await asyncio.gather(*(host.stop() for host in self._runs.values()))
