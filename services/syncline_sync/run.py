"""One run at work: its members and settings, its layout, its fragments, the pushes on their way in.

One loop owns everything here. The fragments start when the layout is known: from the store at
once, otherwise with the first replica that opens the run. What the store keeps of the run itself
is written in the threads of the disk, before it counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import structlog

from syncline_proto.codec import codec_of
from syncline_proto.errors import LayoutMismatch, StoreDamaged, StoreError, Unreachable
from syncline_proto.exclusions import Exclusions
from syncline_proto.layout import Layout, difference
from syncline_proto.reports import EventIn
from syncline_proto.rest import PhaseVote, RunMembership, RunState
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.ending import Ending, Vote
from syncline_sync.core.record import STRANGERS_MAX
from syncline_sync.places import Places
from syncline_sync.pool import all_of
from syncline_sync.recalled import Recalled, read_fragments
from syncline_sync.runner import Adopt, MembershipStamp, Runner, Surroundings
from syncline_sync.shared import Shared
from syncline_sync.staging import Staging
from syncline_sync.store import RunStore
from syncline_sync.stored import Stored
from syncline_sync.voice import Telling

log = structlog.get_logger()

LOOKS = 8
"""How often pushes are looked at, in the time after which one that stands still is cut."""

PUSHES_BESIDE_ONE = 3
"""Room for so many of the largest pushes leaves some for the others beside one replica that holds
all it may and sends nothing; beside n of such it takes room for 2^(n+1) - 1 (``budget.py``)."""

LITTLE_ROOM = (
    "The largest push of this run has {largest:,} bytes, and --staging-bytes ({limit:,}) is less "
    "than {count} of them: a replica that holds room and sends nothing can keep the others waiting "
    "until it is cut. Give the sync service --staging-bytes {wanted} or more."
)


class RunHost:
    """One run: its layout, its fragments, the pushes on their way in."""

    def __init__(
        self,
        name: str,
        settings: RunSettings,
        recalled: Recalled,
        shared: Shared,
        *,
        begins: bool = False,
    ) -> None:
        """``begins``: what is ``recalled`` is a checkpoint, from which nobody has trained here."""
        self.name = name
        self.settings = settings
        self.members: Mapping[str, int] = {}
        self._came: set[str] = set()
        """Who has opened the run. It matters until the first round has closed."""
        self._goes_on = recalled.layout is not None and not begins
        """Who is a member of it at once has opened it before this process began."""
        self.ended_at_s: float | None = time.monotonic()
        """Since when the control plane does not name it; None while it does."""
        self.asked_at_s = time.monotonic()
        self.layout: Layout | None = None
        self.fingerprint = ""
        self.places: Places | None = None
        self.staging: Staging | None = None
        self.runners: dict[int, Runner] = {}
        """Of the fragments that are ours, by number, ascending."""
        self.metrics = shared.metrics.of(name)
        self._kept: RunSettings | None = None
        """The settings that this process has put into the store."""
        self._opening: asyncio.Task[None] | None = None
        self._dropping: asyncio.Task[None] | None = None
        self._shared = shared
        self._store, self.epoch = RunStore(shared.root, name), recalled.epoch
        self.heard = recalled.heard
        """The control plane may name this revision where we have gone back from it."""
        self._running, self._is_ending = True, False
        self._stamp = MembershipStamp()
        self._phase: tuple[int, bool] | None = None
        """The control plane's last word on the synchronous phase: its number, whether it ended."""
        self._ending = Ending(())
        self._voted: Vote | None = None
        self._told: dict[str, tuple[str, int]] = {}
        """What fragments have said of the run -> of which change."""
        if recalled.layout is not None:
            self._start(recalled.layout, recalled.fragments)

    def keeps(self, settings: RunSettings) -> bool:
        """Whether these settings are in the store."""
        return settings == self._kept

    async def keep(self, settings: RunSettings) -> None:
        """Put settings into the store, before they count; one call at a time.

        Raises:
            StoreError: the disk refuses.
        """
        if self._kept is None and self.layout is None:  # else its folder is there, or was lost
            await self._shared.at_disk(self._store.begin)
        await self._shared.at_disk(self._store.save_settings, settings)
        self._kept = settings

    def adopt(self, membership: RunMembership, stamp: MembershipStamp) -> None:
        """Take over members, settings and state; every fragment hears of it in its own order."""
        self._stamp = replace(stamp, settling=membership.settling)
        self.settings = membership.settings
        self.members = {m.replica: m.incarnation for m in membership.members}
        if self._goes_on:
            self._came, self._goes_on = set(self.members), False
        self._running = membership.state is RunState.RUNNING
        if self.ended_at_s is not None:  # it is served (again) from now on
            self._see_room()
        self.ended_at_s = None
        self._phase = membership.phase, membership.phase_ended
        self._ending.hear(*self._phase)
        self._look()

    @property
    def plane(self) -> str:
        """The control plane's process whose word was followed last."""
        return self._stamp.instance

    def end(self, now_s: float) -> None:
        """The control plane does not name the run any more: nobody is a member."""
        if self.ended_at_s is None:
            self.ended_at_s, self.members, self._running = now_s, {}, False
            self._spread()

    @property
    def vote(self) -> PhaseVote | None:
        """What we have to say, to all who share the run, of the end of its synchronous phase."""
        vote = self._ending.vote if self.settings.warmup_steps and self.ended_at_s is None else None
        return vote and PhaseVote(run=self.name, phase=vote.phase, offered=vote.offered)

    async def open(self, layout: Layout, replica: str) -> None:
        """Set the run's layout, or compare with it. The first to come sets it.

        Who is let in has come, and is not waited for in the first round once it is gone.

        Raises:
            LayoutMismatch: it differs; the message names the first difference.
            StoreError: the disk refuses.
            Unreachable: the run has been put away meanwhile.
        """
        if self.layout is None:
            if self._is_ending:
                raise Unreachable(f"Run {self.name} is being put away; open it again.")
            self._opening = self._opening or asyncio.create_task(self._begin(layout))
            await asyncio.shield(self._opening)  # it goes on without the caller
        assert self.layout is not None
        if await self._shared.compute(layout.fingerprint) != self.fingerprint:
            raise LayoutMismatch(
                f"This model is not the one of run {self.name}: "
                f"{difference(self.layout, layout)} Train the run's model, or start another run."
            )
        if len(self._came) < STRANGERS_MAX:
            self._came.add(replica)
        if replica not in self.members:  # it has gone meanwhile, and no other word of it follows
            self._spread()

    @property
    def fragments(self) -> int:
        """How many the run's layout has, whoever owns them; 0 before there is one."""
        return len(self.layout.fragments) if self.layout else 0

    @property
    def unbegun(self) -> str | None:
        """The name of a fragment of ours that has no revision yet; None if each has one."""
        without = (r.name for r in self.runners.values() if r.holding.revisions.newest is None)
        return next(without, None)

    def states(self, life: tuple[str, int] = ("", 0)) -> list[pb.FragmentState]:
        """Where each of our fragments stands, as published; what a (replica, incarnation) has."""
        return [
            pb.FragmentState(
                fragment=r.number,
                initialised=r.holding.revisions.newest is not None,
                revision=r.latest.revision,
                gradient_step=r.latest.gradient_step,
                committed_tokens=r.latest.committed_tokens,
                arrived=r.core.arrived,
                expected=r.core.expected,
                last_seq=r.core.last_seq(*life),
                phase=r.latest.phase,
            )
            for r in self.runners.values()
        ]

    async def stop(self) -> None:
        """Come to rest: what is under way is done, and from then on nothing writes to the files."""
        self._is_ending = True
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._dropping is not None:
            self._dropping.cancel()
        if self.staging is not None:
            self.staging.end()
        await all_of(runner.stop() for runner in self.runners.values())
        self.metrics.close()

    async def _begin(self, layout: Layout) -> None:
        """Make a layout the run's: durable first, then at work."""
        try:
            await self._shared.compute(layout.fingerprint)  # heavy, and at hand from then on
            at_disk, mine = self._shared.at_disk, self._shared.seat.owned(layout)
            await at_disk(self._store.save_layout, layout)
            fragments = self._store.fragments(layout, mine)
            self._start(layout, await at_disk(read_fragments, fragments, self.epoch))
            self._see_room()
            self._look()
        except StoreError as error:
            if not isinstance(error, StoreDamaged):
                self._shared.fail(error)  # whoever asked may be gone, and would not tell
            raise
        finally:
            self._opening = None

    def _start(self, layout: Layout, fragments: Mapping[int, Stored]) -> None:
        self.layout, self.fingerprint = layout, layout.fingerprint()
        self.places = Places(layout)
        self.staging = Staging(self.name, layout, self._shared.budget)
        self._dropping = asyncio.create_task(self._drop_stalled(self.staging))
        self._ending = Ending(
            fragments,
            is_alone=self._shared.seat.shards == 1,
            phase=max((one.saved.phase for one in fragments.values() if one.saved), default=0),
        )
        if self._phase is not None:
            self._ending.hear(*self._phase)
        around = Surroundings(
            run=self.name,
            staging=self.staging,
            budget=self._shared.budget,
            pool=self._shared.pool,
            disk=self._shared.disk,
            lull=self._shared.lull,
            metrics=self.metrics,
            telling=Telling(
                fragments=len(layout.fragments),
                tell=lambda what: self._shared.report(self.name, what),
                tell_once=self._tell_once,
                settled=self._shared.settled,
                exclusions=Exclusions(),
            ),
            ending=self._ending,
            look=self._look,
            fail=self._shared.fail,
        )
        specs = layout.fragments
        self.runners = {
            i: Runner(i, specs[i], self.settings, stored, around) for i, stored in fragments.items()
        }

    def _tell_once(self, sentence: str, change: tuple[str, int]) -> None:
        """One event for all fragments, each of which comes to it in its own time."""
        if self._told.get(sentence) != change:
            self._told[sentence] = change
            self._shared.report(self.name, EventIn(kind="run.changed", message=sentence))

    def _see_room(self) -> None:
        """Tell the operator where replicas' pushes are large for the room that there is."""
        limit = self._shared.budget.limit
        numel = max((runner.numel for runner in self.runners.values()), default=0)
        largest = codec_of(pb.CODEC_FP32).size(numel)
        wanted = PUSHES_BESIDE_ONE * largest
        if wanted > limit:
            why = LITTLE_ROOM.format(
                largest=largest, limit=limit, wanted=wanted, count=PUSHES_BESIDE_ONE
            )
            log.warning("little room for pushes", run=self.name, why=why)
            self._shared.report(self.name, EventIn(kind="run.little_room", message=why))

    async def _drop_stalled(self, staging: Staging) -> None:
        """Drop pushes that stand still, for ever."""
        try:
            while True:
                timeouts = self.settings.timeouts
                await asyncio.sleep(timeouts.call_s / LOOKS)
                staging.drop_stalled(time.monotonic(), timeouts.call_s, timeouts.round_deadline_s)
        except Exception as error:  # the outermost loop of this task
            self._shared.fail(error)

    def _look(self) -> None:
        """Tell the control plane how the phase stands, if that is new, and all fragments."""
        if self._ending.vote != self._voted:
            self._voted = self._ending.vote
            self._shared.vote()
        self._spread()

    def _spread(self) -> None:
        self.metrics.members(set(self.members))
        if self.staging is not None:
            self.staging.fence(
                lambda f, r, incarnation: self.runners[f].core.fenced(self.members, r, incarnation)
            )
        came = frozenset(self._came)
        for runner in self.runners.values():
            runner.adopt(Adopt(self.members, self.settings, self._running, self._stamp, came))
