"""The runs that this process serves: made from the control plane's word or from the store.

One loop owns everything here. Runs that have ended are put away after a while; asked for, they
come back from the store. A run whose files are damaged is served to nobody, and harms no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from pathlib import Path

import structlog

from syncline_proto.errors import LeaseLost, RunUnknown, StoreDamaged, StoreError, bare
from syncline_proto.names import RUN_DAMAGED
from syncline_proto.reports import EventIn
from syncline_proto.rest import (
    Membership,
    Origin,
    PhaseVote,
    RunMembership,
)
from syncline_proto.settings import RunSettings
from syncline_sync.allocator import Leavings
from syncline_sync.aside import Aside
from syncline_sync.astray import astray, has_gone_on, is_astray, without_others
from syncline_sync.durability import NOTHING_LOST
from syncline_sync.fallback import fall_back
from syncline_sync.recalled import Recalled
from syncline_sync.run import RunHost, Shared
from syncline_sync.runner import MembershipStamp
from syncline_sync.store import RunStore

log = structlog.get_logger()

MEMBER_WAIT_S = 10.0
"""How long a new replica's call waits for the control plane's word of it to arrive here."""

ENDED_KEPT_S = 600.0
"""An ended run stays in memory this long, for its last pulls and its export."""

ENDED_MAX = 16
"""Ended runs in memory at once; the one that was asked for the longest ago is put away first."""

SWEEP_S = 30.0

WENT_BACK = (
    "The sync service ended before all that it had published was on the disk: what it published "
    "last may be lost. Epoch {} begins: replicas move their progress onto what is there."
)

RESTORED = "Begun at revision {0.revision} of the checkpoint {0.checkpoint}."

STOP_S = 20.0
"""How long the end waits for what is under way at the disk.

With the doors and the last reports it stays within the 30 s after which Kubernetes would kill us.
"""


class DiskHangs(StoreError):
    """The disk has neither done nor refused what it was asked; the thread that waits never ends."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"The disk of {root} has not answered for {STOP_S:g} s. Mend it, then {NOTHING_LOST}"
        )


class Host:
    """All runs of the process."""

    def __init__(self, shared: Shared) -> None:
        self.instance = uuid.uuid4().hex
        self._shared = shared
        self._runs: dict[str, RunHost] = {}
        self._loads: dict[str, asyncio.Task[RunHost]] = {}
        """One at a time for a run: two would write to the same files."""
        self._stops: dict[str, asyncio.Task[None]] = {}
        """Runs on their way out; until one has stopped its files are its own: nobody loads it."""
        self._damaged: dict[str, str] = {}
        """Why a run is not served, in a sentence; until the process ends."""
        self._changed = asyncio.Event()
        self._plane = ""
        """The control plane's process whose word is followed."""

    async def fall_back(self, name: str) -> None:
        """Let a damaged run go on from what is whole, on the operator's word; before any is served.

        Raises:
            RunUnknown: the store has no such run.
            StoreError: the disk refuses.
        """
        try:
            done = await self._shared.at_disk(fall_back, RunStore(self._shared.root, name))
        except StoreDamaged as error:
            self._give_up(name, error.message)
            return
        if done is None:
            log.info("nothing of the run is damaged: it stays where it is", run=name)
            return
        log.warning("run fell back", run=name, done=done)
        self._tell(name, "run.fell_back", done)
        with contextlib.suppress(StoreDamaged):  # of something else, and then it has been told
            self._tell_standing(await self.run(name))

    async def follow(self, membership: Membership) -> None:
        """Take over the control plane's word on every run that has not ended.

        Not before each has been read from the store and its settings are there; those that are
        damaged are passed over, and those of a service that has taken our name. One call at a time.

        Raises:
            StoreError: the disk refuses.
        """
        if self._shared.is_replaced():
            known = {run.run for run in membership.runs if await self.knows(run.run)}
            membership = without_others(membership, self._runs, frozenset(known))
        while waiting := [r for r in membership.runs if not self._ready(r)]:
            await asyncio.gather(*(self._prepare(r) for r in waiting))
        self._adopt(membership)

    async def knows(self, name: str) -> bool:
        """Whether there is anything of a run here, in memory or in the store."""
        if name in self._runs or name in self._loads or name in self._damaged:
            return True
        return await self._shared.disk.find(RunStore(self._shared.root, name).folder.exists)

    @property
    def fragments(self) -> int:
        """How many are ours, of all runs in memory."""
        return sum(len(host.runners) for host in self._runs.values())

    def _ready(self, run: RunMembership) -> bool:
        host = self._runs.get(run.run)
        if run.run in self._damaged:
            return True
        return host is not None and host.keeps(run.settings) and not is_astray(host, run)

    async def _prepare(self, run: RunMembership) -> None:
        origin = None if has_gone_on(run) else run.origin
        try:
            host = self._runs.get(run.run) or await self._loaded(run.run, run.settings, origin)
        except StoreDamaged:
            return  # it has been told of; the others go on
        try:
            if is_astray(host, run):
                raise astray(self._shared.root)
            if not host.keeps(run.settings):
                await host.keep(run.settings)
        except StoreDamaged as error:
            there = self._runs.get(run.run)  # it may have been put away meanwhile
            if there is not None:
                self._put_aside(there)
            self._give_up(run.run, error.message)

    def _adopt(self, membership: Membership) -> None:
        now_s = time.monotonic()
        stamp = MembershipStamp(membership.instance, membership.version)
        for run in membership.runs:
            if run.run in self._damaged:
                continue
            host = self._runs[run.run]
            is_new = host.ended_at_s is not None
            host.adopt(run, stamp)
            if is_new:
                log.info("run", run=run.run, state=run.state)
            if is_new or membership.instance != self._plane:
                self._tell_standing(host)
        self._plane = membership.instance
        named = {run.run for run in membership.runs}
        for host in self._runs.values():
            if host.name not in named:
                host.end(now_s)
        self._changed.set()
        self._changed = asyncio.Event()

    def votes(self) -> list[PhaseVote]:
        """What the control plane is to hear of synchronous phases that are about to end."""
        return [vote for host in self._runs.values() if (vote := host.vote) is not None]

    async def sweep(self) -> None:
        """Free the memory that nobody has used for long, for ever.

        That is what runs held that ended long ago (their files stay), idle slabs, and what a flood
        of calls has left.
        """
        leavings = Leavings()
        while True:
            await asyncio.sleep(SWEEP_S)
            self._shared.slabs.trim()
            await self._put_away()
            await self._shared.compute(leavings.give_back)

    async def _put_away(self) -> None:
        """Free the ended runs that are too many, or have been kept long enough."""
        kept_from_s = time.monotonic() - ENDED_KEPT_S
        ended = [host for host in self._runs.values() if host.ended_at_s is not None]
        ended.sort(key=lambda host: host.asked_at_s, reverse=True)
        gone = [
            self._put_aside(host)
            for place, host in enumerate(ended)
            if place >= ENDED_MAX or (host.ended_at_s or 0.0) < kept_from_s
        ]
        if gone:
            await asyncio.wait(gone)  # they go on without whoever waits here

    def _put_aside(self, host: RunHost) -> asyncio.Task[None]:
        """Take a run out of service at once, and out of memory when it has come to rest."""
        del self._runs[host.name]
        self._count()
        task = self._stops[host.name] = asyncio.create_task(self._stopped(host))
        return task

    async def _stopped(self, host: RunHost) -> None:
        is_free = True
        try:
            await host.stop()
        except Exception as error:
            is_free = False  # it may still write: its files stay its own
            self._shared.fail(error)
            raise
        finally:
            if is_free:
                del self._stops[host.name]

    async def member(self, run: str, replica: str, incarnation: int) -> RunHost:
        """The run, once this replica is known to hold its lease.

        Waits a little: a replica that has just registered may be here before the word of it.

        Raises:
            RunUnknown: there is no such run.
            StoreDamaged: its files are damaged; the message names one.
            LeaseLost: another incarnation holds the lease, or nobody does.
        """
        deadline = time.monotonic() + MEMBER_WAIT_S
        while True:
            self._check(run)
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
            StoreDamaged: its files are damaged; the message names one.
        """
        self._check(name)
        host = self._runs.get(name)
        if host is None:
            if not await self._shared.disk.find(RunStore(self._shared.root, name).can_be_opened):
                raise RunUnknown(f"There is no run {name} here.")
            self._check(name)  # and whoever else asked meanwhile may have loaded it
            host = self._runs.get(name) or await self._loaded(name, None)
            await self._put_away()
        host.asked_at_s = time.monotonic()
        return host

    async def _loaded(
        self, name: str, settings: RunSettings | None, origin: Origin | None = None
    ) -> RunHost:
        """The run, read from the store in the pool; whoever else asks meanwhile gets the same.

        Without ``settings`` it has those that the store has. One with an ``origin`` begins from
        what was fetched of that.

        Raises:
            StoreDamaged: a file is missing, short, or fails its checksum; the message names it.
        """
        task = self._loads.get(name)
        if task is None:
            task = self._loads[name] = asyncio.create_task(self._load(name, settings, origin))
        try:
            return await asyncio.shield(task)  # who stops waiting does not stop the others
        finally:
            del task  # it has its error, and that has this frame

    async def _load(
        self, name: str, settings: RunSettings | None, origin: Origin | None
    ) -> RunHost:
        store = RunStore(self._shared.root, name)
        try:
            if name in self._stops:
                await asyncio.shield(self._stops[name])
            begins = False
            if origin is not None:
                aside = Aside(store.root, name, origin.id, self._shared.seat)
                begins = await self._shared.at_disk(aside.adopt, origin.checkpoint)
            settings = settings or await self._shared.at_disk(store.load_settings)
            recalled = await self._shared.at_disk(Recalled.read, store, self._shared.seat)
            if recalled.went_back:
                self._tell(name, "run.went_back", WENT_BACK.format(recalled.epoch))
            host = self._runs[name] = RunHost(name, settings, recalled, self._shared, begins=begins)
            self._count()
            if begins and origin and self._shared.seat.index == 0:  # the same of all services
                self._tell(name, "run.restored", RESTORED.format(origin))
            return host
        except StoreDamaged as error:
            self._give_up(name, error.message)
            bare(error)  # its frames have what was read before the damage
            raise StoreDamaged(self._damaged[name]) from None
        finally:
            del self._loads[name]

    def _tell_standing(self, host: RunHost) -> None:
        """Tell the control plane where a run stands, as soon as it names the run.

        It may not have heard of the last rounds, or its database may be older than they are.
        """
        for runner in host.runners.values():
            if runner.holding.revisions.newest is None:
                continue
            self._shared.report(host.name, runner.standing())

    def tell_anew(self, name: str) -> None:
        """The control plane will never hear of some rounds of a run: tell it where that stands.

        And what has settled, after that: it may know of data of these rounds by nothing else.
        """
        host = self._runs.get(name)
        if host is not None:
            self._tell_standing(host)
            for runner in host.runners.values():
                runner.settle_anew()

    def _give_up(self, name: str, why: str) -> None:
        """Serve a damaged run to nobody, and tell everybody why: once, until the next start."""
        seat = self._shared.seat
        whose = f" by sync service {seat}" if seat.shards > 1 else ""
        self._damaged[name] = f"Run {name} is not served{whose}: {why}"
        self._shared.metrics.damaged.labels(name).set(1)
        log.error("run damaged", run=name, why=why)
        self._tell(name, RUN_DAMAGED, self._damaged[name])

    def _check(self, name: str) -> None:
        if name in self._damaged:
            raise StoreDamaged(self._damaged[name])

    def _tell(self, name: str, kind: str, message: str) -> None:
        self._shared.report(name, EventIn(kind=kind, message=message))

    def _count(self) -> None:
        self._shared.metrics.runs.set(len(self._runs))

    async def stop(self) -> None:
        """End every run once what it has under way is done; called last, and once.

        Raises:
            DiskHangs: that is not done within ``STOP_S``; what was not committed is lost.
        """
        try:
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*self._loads.values(), return_exceptions=True)
                for host in list(self._runs.values()):
                    self._put_aside(host)
                await asyncio.gather(*self._stops.values())
        except TimeoutError as error:
            raise DiskHangs(self._shared.root) from error
