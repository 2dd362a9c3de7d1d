"""One fragment at work: its decisions, and what it holds, in one order.

An actor on the event loop, so nothing here needs a lock: a single task takes pushes and
membership one after another. What needs no values is answered beside it, between two of its steps:
that a push is known, or fenced, or late. Heavy arithmetic runs in the pool, and what is written in
the threads of the disk, while the task waits; the order is always
judge -> fold -> answer -> (due?) close -> outer step -> store -> publish. But a round's first few
pushes may be answered, and the round closed, before they are folded; or they are stepped as they
came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from syncline_proto.errors import InvalidRequest
from syncline_proto.layout import FragmentSpec
from syncline_proto.reports import RoundReport
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.core.ending import Ending
from syncline_sync.core.few import is_likely
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.merge import Outcome, Weighed
from syncline_sync.core.radial import is_radial
from syncline_sync.core.record import ClosedBy, Judgement
from syncline_sync.cuts import FEW_SPANS
from syncline_sync.disk import Disk
from syncline_sync.holding import Holding
from syncline_sync.lingering import Lingering
from syncline_sync.lull import Lull
from syncline_sync.metrics import RunMetrics
from syncline_sync.pool import P, T, compute
from syncline_sync.shard import push_of
from syncline_sync.staged import Staged
from syncline_sync.staging import Staging, away
from syncline_sync.stored import Stored
from syncline_sync.voice import Telling, Voice


@dataclass(frozen=True, slots=True)
class MembershipStamp:
    """Which of the control plane's words on the run it is."""

    instance: str = ""
    version: int = 0
    settling: int = 0
    """It asks who has settled as of this version, or a later one; 0: it does not."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """The run's members, settings or state have changed."""

    members: Mapping[str, int]
    settings: RunSettings
    running: bool
    stamp: MembershipStamp
    came: Collection[str]
    """Who has opened the run, whether or not it is a member still."""


class Wake(Enum):
    """Something is to be done that the runner has beside its inbox."""

    LOOK = auto()
    """Something of the run is new."""
    FOLD = auto()
    """What waits to be folded with more has waited long enough."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a fragment needs of its run and process."""

    run: str
    staging: Staging
    budget: Budget
    pool: ThreadPoolExecutor
    disk: Disk
    lull: Lull
    metrics: RunMetrics
    telling: Telling
    ending: Ending
    """Of the run's synchronous phase; its fragments share it."""
    look: Callable[[], None]
    """Tell others how the phase stands, and let every fragment see whether it may close now."""
    fail: Callable[[BaseException], None]
    """Stop the whole process: a fragment that cannot go on must not pretend to."""


class Runner:
    """One fragment of one run."""

    def __init__(
        self,
        number: int,
        spec: FragmentSpec,
        settings: RunSettings,
        stored: Stored,
        around: Surroundings,
    ) -> None:
        self.number, self.name, self.numel = number, spec.name, spec.numel
        self.holding = Holding(
            number=number,
            edges=spec.edges,
            stored=stored,
            pool=around.pool,
            disk=around.disk,
            lull=around.lull,
            commit_seconds=around.metrics.commit_seconds,
            fail=around.fail,
        )
        self._around = around
        self._inbox: asyncio.Queue[Staged | Wake | None] = asyncio.Queue()
        enough = partial(self._inbox.put_nowait, Wake.FOLD)
        self._lingering = Lingering(around.budget, enough)
        """Of pushes that are judged, and wait to be folded with more."""
        self._change: Adopt | None = None
        """The newest of those that are to be adopted; the inbox has one wake for them all."""
        self._is_woken = False
        self._is_ending = False
        """Nothing more is begun; None in the inbox tells that to the task that waits there."""
        self._is_published = asyncio.Event()
        """No round is between its close and its publication."""
        self._is_published.set()
        offer = stored.offer[0] if stored.offer else None
        self.core = Fragment(
            settings,
            stored.saved,
            number=number,
            ending=around.ending,
            epoch=stored.epoch,
            offer=offer,
        )
        self.latest = self.core.saved
        """Where the fragment stands, as published."""
        self.holding.be_in(self.latest.phase)
        if not self.core.synchronous:
            self._end_gradients()
        around.metrics.stands(number, self.core.saved)
        self._stamp, self._said = MembershipStamp(), 0
        """The last one adopted, and the version as of which we have said that we have settled."""
        self._voice = Voice(number, spec.name, around.telling, stored.reports)
        self._task = asyncio.create_task(self._run(), name=f"fragment {around.run}/{number}")

    async def answer_late(self, header: pb.PushHeader) -> Judgement | None:
        """Answer a push whose round has closed, once that is published; no values need come.

        A kill before that undoes the close: one rank would have been told, and the others wait.

        Raises:
            InvalidRequest: it contradicts where the run stands.
        """
        push = push_of(header, norm=0.0)
        while (late := self.core.answer_late(push)) is not None and not self._is_published.is_set():
            await self._is_published.wait()
        return late

    def submit(self, staged: Staged) -> None:
        """Hand over a whole push; its answer goes to ``staged.answer``."""
        if self._is_ending:
            self._send_away(staged)
        else:
            self._inbox.put_nowait(staged)  # bounded by the staging budget

    def adopt(self, change: Adopt) -> None:
        """Take over the newest word on the run, when it is its turn; or that of one that waits."""
        self._change = change
        self._wake()

    def settle_anew(self) -> None:
        """What we have said of what has settled may not have been heard."""
        self._said = 0
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:  # a slow disk may hold us up for any number of them
            self._is_woken = True
            self._inbox.put_nowait(Wake.LOOK)

    def standing(self) -> RoundReport:
        """Where the fragment stands now, for who may not have heard of it."""
        return self._voice.standing(self.latest)

    async def stop(self) -> None:
        """End once what is under way is done: a round that closes is published and told of, and on
        the disk.

        What still waits to be judged is forgotten; its replica is told to send it again.
        """
        self._is_ending = True
        self._inbox.put_nowait(None)
        await asyncio.gather(self._task, return_exceptions=True)
        self._give_up()
        await self.holding.end()
        while not self._inbox.empty():
            event = self._inbox.get_nowait()
            if isinstance(event, Staged):
                self._send_away(event)
        newest = self.latest.revision
        for shelf in (self.holding.revisions, self.holding.gradients):
            shelf.end(f"The run is put away; revision {newest} is its newest.", newest)

    def _send_away(self, staged: Staged) -> None:
        self._around.staging.drop(staged, away())

    async def _run(self) -> None:
        try:
            while True:
                event = await self._next()
                if self._is_ending:
                    self._inbox.put_nowait(event)  # whoever waits for its answer gets one
                    return
                if isinstance(event, Staged):
                    await self._take(event)
                elif event is Wake.LOOK:
                    self._look()
                elif event is Wake.FOLD:
                    await self._fold_first()
                closed_by = self.core.due(time.monotonic())
                if closed_by is not None:
                    await self._close(closed_by)
                elif self.holding.is_full:  # they wait for nothing more
                    await self._fold_first()
        except Exception as error:  # the outermost loop of this fragment
            self._around.fail(error)

    async def _next(self) -> Staged | Wake | None:
        """The next event; None when the round may close by itself."""
        now_s = time.monotonic()
        if self.core.due(now_s) is not None:
            return None
        look_at_s = self.core.look_at_s(now_s)
        if look_at_s is None:
            return await self._inbox.get()
        try:
            async with asyncio.timeout(look_at_s - now_s):
                return await self._inbox.get()
        except TimeoutError:
            return None

    def _look(self) -> None:
        change, self._change, self._is_woken = self._change, None, False
        if change is not None:
            self._adopt(change)
        else:
            self._settle()

    def _adopt(self, change: Adopt) -> None:
        now_s, ending = time.monotonic(), self._around.ending
        before = ending.phase, ending.vote
        told = self.core.adopt(now_s, change.members, change.settings, change.running, change.came)
        self._voice.of_run(told, self.core.saved)
        self._catch_up()
        if not self.core.is_open:
            self._give_up()
        if self.core.saved.phase != self.latest.phase:
            self.latest = self.core.saved
            self.holding.gradients.clear()
            self.holding.be_in(self.latest.phase)
            self._around.metrics.stands(self.number, self.latest)
            self._voice.stands(self.latest)
        if change.stamp.instance != self._stamp.instance:
            self._said = 0  # another database may not have it
        self._stamp = change.stamp
        self._settle()
        if (ending.phase, ending.vote) != before:
            self._around.look()

    async def _take(self, staged: Staged) -> None:
        """Judge a whole push and answer it; fold it, or keep it for ``_fold_first``."""
        push = push_of(staged.shards[0].header, staged.norm)
        try:
            if staged.span_count > FEW_SPANS:
                await self._compute(staged.check_tiling, self.numel)
            else:
                staged.check_tiling(self.numel)
            judgement = self.core.judge(time.monotonic(), push)
        except InvalidRequest as error:
            self._around.staging.drop(staged, error)
            return
        staging = self._around.staging
        release, counts = partial(staging.release, staged), False
        if judgement.sets:
            await self.holding.place(staged.payloads())
            if (offer := self.core.offer) is not None:
                await self.holding.keep_offer(offer)
                self.core.keep_offer()
                self._around.look()
        elif counts := judgement.weight > 0.0:
            outer = self.core.settings.outer  # of the open round: they change between rounds only
            await self.holding.fold(
                Weighed(
                    staged.payloads(),
                    weight=judgement.weight,
                    rescale=judgement.rescale,
                    norm=push.norm,
                    as_it_came=is_likely(push.norm, outer),
                ),
                release,
                is_radial=is_radial(outer, self.name, push.kind),
            )
        if not self.holding.lingers:
            self._lingering.end()
        elif not self._lingering.begin():
            await self._fold_first()
        # From here to the round's close nothing else may run: who has an answer pushes the next.
        self._around.metrics.judged(judgement.verdict)
        self._voice.judged(push, judgement)
        staging.tell(staged, judgement)
        if not counts:
            release()

    async def _fold_first(self) -> None:
        """What waits to be folded with more does not wait any more."""
        self._lingering.end()
        await self.holding.fold_first()

    def _give_up(self) -> None:
        """Forget what the open round holds."""
        self._lingering.end()
        self.holding.forget()

    def _catch_up(self) -> None:
        """Where settings have changed, a kill soon loses nothing: then it is to cost nothing."""
        if self.core.settings.durability == "commit":
            self.holding.catch_up()

    async def _close(self, closed_by: ClosedBy) -> None:
        """Finish the open round: outer step, store, publish, report."""
        closing, since_s = self.core.close(closed_by), time.monotonic()
        self._lingering.end()
        self._is_published.clear()
        made: list[RoundReport] = []

        def reports(outcome: Outcome | None) -> Sequence[str]:
            made.append(self._voice.report(closing, outcome))
            return self._voice.kept(made[0])

        await self.holding.finish(closing, reports)
        self.latest = closing.saved
        self._is_published.set()
        self.core.published(time.monotonic() - since_s)
        self._catch_up()
        if self.latest.revision > 0:
            self._end_gradients()
        seconds = time.monotonic() - closing.opened_s
        self._around.metrics.closed(self.number, closing, seconds)
        for sentence in closing.told:
            self._voice.event("fragment.norms", sentence)
        self._voice.of_run(closing.told_of_run, self.core.saved)
        self._voice.round(made[0].model_copy(update={"seconds": seconds}))
        self._settle()
        if self.core.is_deserted:  # those whom it waited for did not come, and who pushed is gone
            self._around.look()

    def _settle(self) -> None:
        """Say, where that is asked, that nothing is open of lives that are gone; once it is so.

        After what was committed of them, which has been told by now.
        """
        is_there = self.holding.revisions.newest is not None
        if is_there and self._said < self._stamp.settling and self.core.has_settled:
            self._said = self._stamp.version
            self._voice.has_settled(self._said)

    def _end_gradients(self) -> None:
        why = "gradient_step: the synchronous phase is over; pull revisions."
        self.holding.gradients.end(why, self.latest.revision)

    async def _compute(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await compute(self._around.pool, work, *args, **kwargs)
