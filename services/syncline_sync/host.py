"""What becomes of the control plane's word here: the runs that it names are served, as it says.

Also says which of its replicas holds a lease, and where runs stand. One loop owns everything here;
which runs are in memory is the residence's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping

import structlog

from syncline_proto.errors import LeaseLost, RunUnknown, StoreDamaged, Unreachable
from syncline_proto.reports import EventIn
from syncline_proto.rest import Membership, PhaseVote, RunMembership
from syncline_sync.astray import has_gone_on, is_older, missing, without_others
from syncline_sync.fallback import fall_back
from syncline_sync.residence import Residence
from syncline_sync.run import RunHost
from syncline_sync.runner import MembershipStamp
from syncline_sync.shared import Shared
from syncline_sync.store import RunStore
from syncline_sync.word import Word

log = structlog.get_logger()

MEMBER_WAIT_S = 10.0
"""How long a new replica's call waits for the control plane's word of it to arrive here."""


class Host:
    """The process's part in all runs."""

    def __init__(self, residence: Residence, shared: Shared) -> None:
        self.instance = uuid.uuid4().hex
        self._residence, self._shared = residence, shared
        self._changed = asyncio.Event()
        self._stamp = MembershipStamp()
        self._named: Mapping[str, RunMembership] = {}
        """The newest word, by run."""
        self._preparing: dict[str, asyncio.Task[Exception | None]] = {}
        """Runs for which the word cannot count yet."""

    async def fall_back(self, word: Word) -> None:
        """Let a damaged run go on from what is whole, on the operator's word; before any is served.

        Raises:
            RunUnknown: the store has no such run.
            StoreError: the disk refuses.
        """
        name, store = word.run, RunStore(self._shared.root, word.run)
        try:
            done = await self._shared.at_disk(fall_back, store, word.up_to)
        except StoreDamaged as error:
            self._residence.give_up(name, error.message)
            return
        if done is None:
            log.warning(
                "nothing of the run is damaged: it stays where it is, and --fall-back may go",
                run=name,
            )
            return
        log.warning("run fell back", run=name, done=done)
        self._shared.report(name, EventIn(kind="run.fell_back", message=done))
        with contextlib.suppress(StoreDamaged):  # of something else, and then it has been told
            self._tell_standing(await self._residence.run(name))

    async def follow(self, membership: Membership) -> None:
        """Take over the control plane's word on every run that has not ended; one call at a time.

        At once on those that are ready: that are read from the store and have their settings there.
        Each of the others gets its own once it is ready, the newest there is by then: none waits
        for another, which may be long in reading. Those that are damaged are passed over, and those
        of a service that has taken our name.
        """
        if self._shared.is_replaced():
            there = self._residence
            known = {run.run for run in membership.runs if await there.knows(run.run)}
            membership = without_others(membership, there.runs, frozenset(known))
        self._stamp = MembershipStamp(membership.instance, membership.version)
        self._named = {run.run: run for run in membership.runs}
        now_s = time.monotonic()
        for host in self._residence.runs.values():
            if host.name not in self._named:
                host.end(now_s)
        for run in membership.runs:
            if run.run in self._preparing:
                continue
            if self._ready(run):
                self._adopt(run)
            else:
                self._preparing[run.run] = asyncio.create_task(self._get_ready(run.run))
        self._say_changed()

    async def caught_up(self) -> None:
        """Wait until all that was said so far counts.

        Raises:
            StoreError: the disk refuses.
        """
        while self._preparing:
            for error in await asyncio.gather(*self._preparing.values()):
                if error is not None:
                    raise error

    async def close(self) -> None:
        """Get no more runs ready: the process ends. Called last."""
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)

    async def _get_ready(self, name: str) -> Exception | None:
        """Make a run ready for the word on it, and take that over; return what was in the way."""
        try:
            with self._residence.awaiting(name):
                while (run := self._named.get(name)) is not None and not self._ready(run):
                    await self._prepare(run)
                if run is not None:
                    self._adopt(run)
        except Exception as error:
            self._shared.fail(error)
            return error
        finally:
            del self._preparing[name]
            self._say_changed()
        return None

    def _ready(self, run: RunMembership) -> bool:
        if self._residence.is_damaged(run.run):
            return True
        host = self._residence.runs.get(run.run)
        if host is None or not host.keeps(run.settings) or is_older(host, run):
            return False
        return missing(host, run, self._shared.root) is None

    async def _prepare(self, run: RunMembership) -> None:
        there, host = self._residence, self._residence.runs.get(run.run)
        origin, heard = (None, run.revision) if has_gone_on(run) else (run.origin, 0)
        if host is not None and is_older(host, run):
            there.take_out(host)  # it comes back in a new epoch
            host = None
        try:
            host = host or await there.load(run.run, run.settings, origin, heard)
        except StoreDamaged:
            return  # it has been told of; the others go on
        try:
            if (damage := missing(host, run, self._shared.root)) is not None:
                raise damage
            if not host.keeps(run.settings):
                await host.keep(run.settings)
        except StoreDamaged as error:
            there.give_up(run.run, error.message)

    def _adopt(self, run: RunMembership) -> None:
        """Follow the word on a run that is ready, or damaged: that is served to nobody."""
        if self._residence.is_damaged(run.run):
            return
        host = self._residence.runs[run.run]
        is_new, plane = host.ended_at_s is not None, host.plane
        host.adopt(run, self._stamp)
        if is_new:
            log.info("run", run=run.run, state=run.state)
        if is_new or host.plane != plane:
            self._tell_standing(host)

    def _say_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def votes(self) -> list[PhaseVote]:
        """What the control plane is to hear of synchronous phases that are about to end."""
        return [vote for host in self._residence.runs.values() if (vote := host.vote) is not None]

    async def member(self, run: str, replica: str, incarnation: int) -> RunHost:
        """The run, once this replica is known to hold its lease.

        Waits a little: a replica that has just registered may be here before the word of it.

        Raises:
            RunUnknown: there is no such run.
            Unreachable: it is being read from the store yet.
            StoreDamaged: its files are damaged; the message names one.
            LeaseLost: another incarnation holds the lease, or nobody does.
        """
        deadline = time.monotonic() + MEMBER_WAIT_S
        while True:
            self._residence.check_whole(run)
            host = self._residence.runs.get(run)
            holder = host.members.get(replica, 0) if host else 0
            if host is not None and holder == incarnation:
                return host
            left = deadline - time.monotonic()
            if left <= 0.0 or holder > incarnation:
                break
            changed = self._changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()
        if run in self._preparing:
            raise Unreachable(f"Run {run} is being read from the store; try again in a while.")
        if host is None:
            raise RunUnknown(f"There is no run {run} that goes on; create it first.")
        raise LeaseLost(
            f"{replica} (incarnation {incarnation}) holds no lease in {run}; register again."
        )

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
        host = self._residence.runs.get(name)
        if host is not None:
            self._tell_standing(host)
            for runner in host.runners.values():
                runner.settle_anew()
