"""The runs that this process serves: made from the control plane's word or from the store.

One loop owns everything here. Runs that have ended are put away after a while; asked for, they
come back from the store.
"""

from __future__ import annotations

import asyncio
import time
import uuid

import structlog

from syncline_proto.errors import LeaseLost, RunUnknown
from syncline_proto.rest import Membership, RunMembership
from syncline_proto.settings import RunSettings
from syncline_sync.run import Recalled, RunHost, Shared
from syncline_sync.store import RunStore

log = structlog.get_logger()

MEMBER_WAIT_S = 10.0
"""How long a new replica's call waits for the control plane's word of it to arrive here."""

ENDED_KEPT_S = 600.0
"""An ended run stays in memory this long, for its last pulls and its export."""

ENDED_MAX = 16
"""Ended runs in memory at once; the one that was asked for the longest ago is put away first."""

SWEEP_S = 30.0


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
        """Take over the control plane's word on every run that has not ended.

        Not before each has been read from the store and its settings are there. One call at a time.

        Raises:
            StoreError: the disk refuses, or a stored file is damaged.
        """
        while waiting := [r for r in membership.runs if not self._ready(r)]:
            await asyncio.gather(*(self._prepare(r) for r in waiting))
        self._adopt(membership)

    def _ready(self, run: RunMembership) -> bool:
        host = self._runs.get(run.run)
        return host is not None and host.keeps(run.settings)

    async def _prepare(self, run: RunMembership) -> None:
        host = self._runs.get(run.run) or await self._loaded(run.run, run.settings)
        if not host.keeps(run.settings):
            await host.keep(run.settings)

    def _adopt(self, membership: Membership) -> None:
        now_s = time.monotonic()
        for run in membership.runs:
            host = self._runs[run.run]
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
