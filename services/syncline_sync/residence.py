"""Which runs are in memory: each is read from the store once at a time, and put away once.

Runs that have ended are put away after a while; asked for, they come back from the store. A run
whose files are damaged is served to nobody, and harms no other. Knows nothing of the control plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator, Mapping

import structlog

from syncline_proto.errors import RunUnknown, StoreDamaged, Unreachable, bare
from syncline_proto.names import RUN_DAMAGED
from syncline_proto.reports import EventIn
from syncline_proto.rest import Origin
from syncline_proto.settings import RunSettings
from syncline_sync.allocator import Leavings
from syncline_sync.aside import Aside
from syncline_sync.disk import ENDING, STOP_S, DiskHangs
from syncline_sync.files import is_there
from syncline_sync.pool import all_of
from syncline_sync.recalled import Recalled
from syncline_sync.run import RunHost
from syncline_sync.shared import Shared
from syncline_sync.store import RunStore

log = structlog.get_logger()

ENDED_KEPT_S = 600.0
"""An ended run stays in memory this long, for its last pulls and its export."""

ENDED_MAX = 16
"""Ended runs in memory at once; the one that was asked for the longest ago is put away first."""

SWEEP_S = 30.0

COMMIT_BYTES = 10
"""Of an element in a revision's file, at most: parameters and momentum, and what is published."""

WENT_BACK = (
    "The sync service ended before all that it had published was on the disk: what it published "
    "last may be lost. Epoch {0.epoch} begins: replicas move their progress onto what is there."
)

OLDER_COPY = (
    "{1} is older than it was: the control plane has heard of revision {0.heard}, and {0.lacks} is "
    "the newest there of a fragment. It is an older copy, or it fell back and was killed before "
    "that was told. What came after is lost. Epoch {0.epoch} begins: replicas move their progress "
    "onto what is there."
)

RESTORED = "Begun at revision {0.revision} of the checkpoint {0.checkpoint}."


class Residence:
    """The runs of the process that are in memory, or on their way into it or out."""

    def __init__(self, shared: Shared) -> None:
        self._runs: dict[str, RunHost] = {}
        self._shared = shared
        self._loads: dict[str, asyncio.Task[RunHost]] = {}
        """One at a time for a run: two would write to the same files."""
        self._stops: dict[str, asyncio.Task[None]] = {}
        """Runs on their way out; until one has stopped its files are its own: nobody loads it."""
        self._damaged: dict[str, str] = {}
        """Why a run is not served, in a sentence; until the process ends."""
        self._awaited: set[str] = set()
        """Runs that are about to be served: none of them is surplus."""
        self._is_ending = False

    @contextlib.contextmanager
    def awaiting(self, name: str) -> Generator[None]:
        """Inside, a run is not put away: it counts as ended until it is served."""
        self._awaited.add(name)
        try:
            yield
        finally:
            self._awaited.discard(name)

    @property
    def runs(self) -> Mapping[str, RunHost]:
        """In memory and served, by name."""
        return self._runs

    async def knows(self, name: str) -> bool:
        """Whether there is anything of a run here, in memory or in the store.

        Raises:
            StoreDamaged: the store cannot tell.
        """
        if name in self._runs or name in self._loads or name in self._damaged:
            return True
        return await self._shared.disk.find(is_there, RunStore(self._shared.root, name).folder)

    @property
    def fragments(self) -> int:
        """How many are ours, of all runs in memory."""
        return sum(len(host.runners) for host in self._runs.values())

    @property
    def commit_bytes(self) -> int:
        """At most what the runs at work take of the disk for another round of every fragment."""
        at_work = [host.runners for host in self._runs.values() if host.ended_at_s is None]
        return sum(COMMIT_BYTES * one.numel for runners in at_work for one in runners.values())

    def is_damaged(self, name: str) -> bool:
        """Whether it is served to nobody, until the process ends."""
        return name in self._damaged

    def check_whole(self, name: str) -> None:
        """See that a run is not damaged.

        Raises:
            StoreDamaged: it is; the message names a file.
        """
        if name in self._damaged:
            raise StoreDamaged(self._damaged[name])

    async def run(self, name: str) -> RunHost:
        """The run, for anybody: from memory, or an ended one from the store.

        Raises:
            RunUnknown: neither knows it.
            StoreDamaged: its files are damaged; the message names one.
        """
        self.check_whole(name)
        host = self._runs.get(name)
        if host is None:
            if not await self._shared.disk.find(RunStore(self._shared.root, name).can_be_opened):
                raise RunUnknown(f"There is no run {name} here.")
            await self.put_away(beside=1)
            self.check_whole(name)  # and whoever else asked meanwhile may have loaded it
            host = self._runs.get(name) or await self.load(name, None)
            host.asked_at_s = time.monotonic()
            self._take_surplus_out()  # without a wait, in which another might put this one away
        host.asked_at_s = time.monotonic()
        return host

    async def load(
        self,
        name: str,
        settings: RunSettings | None,
        origin: Origin | None = None,
        heard: int = 0,
    ) -> RunHost:
        """The run, read from the store in the pool; whoever else asks meanwhile gets the same.

        Without ``settings`` it has those that the store has. One with an ``origin`` begins from
        what was fetched of that. The control plane has ``heard`` of this revision.

        Raises:
            StoreDamaged: a file is missing, short, or fails its checksum; the message names it.
        """
        task = self._loads.get(name)
        if task is None:
            loading = self._load(name, settings, origin, heard)
            task = self._loads[name] = asyncio.create_task(loading)
        try:
            return await asyncio.shield(task)  # who stops waiting does not stop the others
        finally:
            del task  # it has its error, and that has this frame

    def give_up(self, name: str, why: str) -> None:
        """Serve a damaged run to nobody, and tell everybody why: once, until the next start."""
        if name in self._damaged:
            return
        host = self._runs.get(name)
        if host is not None:
            self.take_out(host)
        seat = self._shared.seat
        whose = f" by sync service {seat}" if seat.shards > 1 else ""
        self._damaged[name] = f"Run {name} is not served{whose}: {why}"
        self._shared.metrics.damaged.labels(name).set(1)
        log.error("run damaged", run=name, why=why)
        self._tell(name, RUN_DAMAGED, self._damaged[name])

    async def put_away(self, beside: int = 0) -> None:
        """Free the ended runs that are too many ``beside`` those, or have been kept long enough."""
        if gone := self._take_surplus_out(beside):
            await asyncio.wait(gone)  # they go on without whoever waits here

    async def sweep(self) -> None:
        """Free the memory that nobody has used for long, for ever.

        That is what runs held that ended long ago (their files stay), idle slabs, and what a flood
        of calls has left.
        """
        leavings = Leavings()
        while True:
            await asyncio.sleep(SWEEP_S)
            self._shared.slabs.trim()
            await self.put_away()
            await self._shared.compute(leavings.give_back)

    async def stop(self) -> None:
        """End every run once what it has under way is done; called last, and once.

        Raises:
            DiskHangs: that is not done within ``STOP_S``; what was not committed is lost.
            Exception: of a run that could not come to rest, once all others have.
        """
        self._is_ending = True
        try:
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*self._loads.values(), return_exceptions=True)
                for host in list(self._runs.values()):
                    self.take_out(host)
                await all_of(self._stops.values())
        except TimeoutError as error:
            raise DiskHangs(self._shared.root, STOP_S) from error

    async def _load(
        self, name: str, settings: RunSettings | None, origin: Origin | None, heard: int
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
            recalled = await self._shared.at_disk(
                Recalled.read, store, self._shared.seat, heard, self._go_on
            )
            self.check_whole(name)  # it may have been given up meanwhile
            if recalled.went_back:
                form = WENT_BACK if recalled.lacks is None else OLDER_COPY
                why = form.format(recalled, store.folder)
                log.warning("run went back", run=name, why=why)
                self._tell(name, "run.went_back", why)
            host = self._runs[name] = RunHost(name, settings, recalled, self._shared, begins=begins)
            self._count()
            if begins and origin and self._shared.seat.index == 0:  # the same of all services
                self._tell(name, "run.restored", RESTORED.format(origin))
            return host
        except StoreDamaged as error:
            self.give_up(name, error.message)
            bare(error)  # its frames have what was read before the damage
            raise StoreDamaged(self._damaged[name]) from None
        finally:
            del self._loads[name]

    def _go_on(self) -> None:
        """Asked in the midst of what takes long.

        Raises:
            Unreachable: the process ends, and nobody will need it.
        """
        if self._is_ending:
            raise Unreachable(ENDING)

    def _take_surplus_out(self, beside: int = 0) -> list[asyncio.Task[None]]:
        """Take those out of service; ``put_away`` waits until they are out of memory."""
        kept_from_s = time.monotonic() - ENDED_KEPT_S
        hosts = (host for host in self._runs.values() if host.name not in self._awaited)
        ended = [host for host in hosts if host.ended_at_s is not None]
        ended.sort(key=lambda host: host.asked_at_s, reverse=True)
        return [
            self.take_out(host)
            for place, host in enumerate(ended)
            if place >= ENDED_MAX - beside or (host.ended_at_s or 0.0) < kept_from_s
        ]

    def take_out(self, host: RunHost) -> asyncio.Task[None]:
        """Take a run out of service at once, and out of memory when it has come to rest.

        Whoever asks for it meanwhile waits for that, and has it read anew.
        """
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

    def _tell(self, name: str, kind: str, message: str) -> None:
        self._shared.report(name, EventIn(kind=kind, message=message))

    def _count(self) -> None:
        self._shared.metrics.runs.set(len(self._runs))
