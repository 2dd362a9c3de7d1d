"""The rounds of a replica: what is pushed, what is pending, and when that is merged.

Runs on the training thread, in the same order on every rank; only what a push owes to its codec is
added on its way out, in the exchange's (``Residuals.load``). A fragment is pending from its push
to its merge. In between come ``overlap_steps`` inner steps, whose progress the merge keeps; without
overlap none does. When to push is the session's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
from structlog.typing import FilteringBoundLogger
from torch.optim import Optimizer

from syncline.anchors import Anchors
from syncline.batches import check_counted
from syncline.core.agreement import Step
from syncline.core.feedback import has_feedback
from syncline.core.goal import goal
from syncline.core.timed import Publication
from syncline.core.turns import Turns
from syncline.eager import Eager
from syncline.exchange import Exchange
from syncline.flight import Flight, Unpushed
from syncline.landing import Landing
from syncline.payload import Later, Payload, Values
from syncline.push import Outcome, Push
from syncline.tally import Tally
from syncline.tokens import Tokens
from syncline.verdicts import Verdicts
from syncline.voice import of_waiting
from syncline.waiting import Waiting
from syncline_proto.ranges import RANGES_MAX, Ranges, joined
from syncline_proto.settings import CodecName, RunSettings
from syncline_proto.v1 import sync_pb2 as pb


class Rounds:
    """All fragments of one replica.

    Invariant: the parameters of a fragment that is not pending are its anchor plus own progress.
    """

    def __init__(
        self,
        *,
        names: Sequence[str],
        anchors: Anchors,
        exchange: Exchange,
        waiting: Waiting,
        landing: Landing,
        optimizer: Optimizer,
        settings: RunSettings,
        tally: Tally,
        tokens: Tokens,
        verdicts: Verdicts,
        eager: Eager,
        log: FilteringBoundLogger,
    ) -> None:
        """``names`` are the fragments'; ``log`` is silent on all ranks but the first.

        ``eager`` says where training goes on from while a round is under way.

        Of ``settings`` only what never changes is read.
        """
        self.tally, self.tokens, self.eager = tally, tokens, eager
        self._names, self._anchors, self._exchange = names, anchors, exchange
        self._waiting, self._landing, self._verdicts = waiting, landing, verdicts
        self._optimizer, self._settings, self._log = optimizer, settings, log
        self._unpushed = [Unpushed() for _ in names]
        self._pending: dict[int, Flight] = {}
        self._turns = Turns(len(names), settings.fragment_groups, not settings.asynchronous)
        self._is_sick = False
        """Training has gone on since a push that was not finite."""
        self.owed = 0
        """Groups that have come late, whole, since the last push."""

    @property
    def fragments(self) -> range:
        return range(len(self._names))

    @property
    def revision(self) -> int:
        """The smallest over the fragments."""
        return min(self._anchors.revisions)

    @property
    def are_pending(self) -> bool:
        return bool(self._pending)

    @property
    def are_unpushed(self) -> bool:
        """Whether a fragment that is not pending holds progress to be pushed."""
        return bool(self._ready())

    @property
    def has_progress(self) -> bool:
        """Whether a fragment holds steps that were not pushed."""
        return any(held.first_step < self.tally.inner_step for held in self._unpushed)

    @property
    def steps_held(self) -> int:
        """Inner steps of the last fragment that no push holds."""
        return self.tally.inner_step - self._unpushed[-1].first_step

    @property
    def newest(self) -> Publication | None:
        """The last fragment's revision that was merged last; None before the first."""
        return self._landing.newest

    @property
    def last_is_pending(self) -> bool:
        """Whether the fragment is that comes last, and whose tokens count for the run."""
        return self.fragments[-1] in self._pending

    @property
    def goal(self) -> int | None:
        """The revision that every fragment ends with, once the token budget is committed."""
        tally, budget = self.tally, self._settings.token_budget
        last, waits = self._anchors.revisions[-1], not self._settings.asynchronous
        groups = len(self._turns.groups)
        return goal(last, tally.committed, tally.of_round, budget, groups, waits)

    @property
    def is_at_goal(self) -> bool:
        """Whether the merged revisions are those with which the run ends."""
        end = self.goal
        return end is not None and self.revision >= end

    def adopt(self, settings: RunSettings) -> None:
        """Go by what may change of these from now on."""
        self.eager.adopt(settings.outer)
        self._anchors.keeps_copies = settings.codec.down == "int8"

    def start_over(self) -> None:
        """The parameters are the anchors: there is no progress, and nothing of any before."""
        self._is_sick, self.owed = False, 0
        self._landing.residuals.clear()
        self._turns.start_over()
        self.eager.clear()
        step = self.tally.inner_step
        self._unpushed = [held.forgotten(step) for held in self._unpushed]

    def begin(self, pushes: Iterable[Push], overlap_steps: int = 0) -> None:
        """Push; what comes back will be merged after so many inner steps."""
        lands_at = self.tally.inner_step + overlap_steps
        for push in pushes:
            result = self._exchange.begin(push)
            start = self._anchors.current(push.fragment) if overlap_steps else None
            back = None
            if start is not None and self.eager.is_on:
                back = self.eager.move(push.fragment, start.here())
            self._pending[push.fragment] = Flight(push, result, lands_at, start, back)
            held = self._unpushed[push.fragment].named(push.data)
            self._unpushed[push.fragment] = held.forgotten(push.last_step)

    def push(self, codec: CodecName, groups: int | None) -> list[list[int]]:
        """Push the progress of so many groups, or of all; the fragments that were, by group.

        The pseudo-gradients are taken now, and sent in the background.
        """
        self._count_tokens()
        chosen = self._turns.following(
            self._anchors.revisions, self._pending, self._ready(), groups
        )
        self.owed = 0
        self._anchors.scratch.trim()
        self._push(sorted(fragment for group in chosen for fragment in group), codec)
        return chosen

    def before_last(self, groups: int) -> int:
        """Of so many groups, how many come in their turn before the last fragment's."""
        return self._turns.before_last(self._anchors.revisions, self._pending, groups)

    def of_interval(self, groups: Sequence[Collection[int]]) -> tuple[int, int | None]:
        """How many of these pushes do more than catch up (``Turns.of_interval``)."""
        return self._turns.of_interval(groups, self._anchors.revisions)

    def _push(self, fragments: Collection[int], codec: CodecName) -> None:
        self._turns.pushed(fragments)
        pushes = (self._of_progress(fragment, codec) for fragment in fragments)
        self.begin(pushes, self._settings.overlap_steps)
        if (last := self.fragments[-1]) in fragments:
            self.tally.since_sync, self.tally.pushed = 0, self._pending[last].push.tokens

    def unnamed(self) -> list[Ranges]:
        """By fragment, the leased data that was read and is in no push; too much waits.

        Who names it otherwise than by ``push`` says what became ``named``.
        """
        data = self.tokens.take_read()
        self._unpushed = [held.more(0, data) for held in self._unpushed]
        return [held.data[:RANGES_MAX] for held in self._unpushed]

    def named(self, data: Sequence[Ranges]) -> None:
        """So much of it, by fragment, is in the run."""
        self._unpushed = [held.named(d) for held, d in zip(self._unpushed, data, strict=True)]

    def name_everywhere(self) -> None:
        """What any fragment's next push is to name all fragments' name."""
        data = joined(*(held.data for held in self._unpushed))
        self._unpushed = [held.more(0, data) for held in self._unpushed]

    def _count_tokens(self) -> None:
        tokens, data = self.tokens.take(), self.tokens.take_read()
        check_counted(self.tally, tokens, self._settings.token_budget)
        self._unpushed = [held.more(tokens, data) for held in self._unpushed]

    def _ready(self) -> list[int]:
        """Fragments that hold progress, are not pending, and have another revision to come."""
        step, end, revisions = self.tally.inner_step, self.goal, self._anchors.revisions
        return [
            fragment
            for fragment, held in enumerate(self._unpushed)
            if held.first_step < step
            and fragment not in self._pending
            and (end is None or revisions[fragment] < end)
        ]

    def _of_progress(self, fragment: int, codec: CodecName) -> Push:
        held, last_step = self._unpushed[fragment], self.tally.inner_step
        return Push(
            fragment=fragment,
            kind=pb.PUSH_KIND_PSEUDO_GRADIENT,
            payload=self._payload(fragment, codec),
            base=self._anchors.revisions[fragment],
            epoch=self._anchors.epochs[fragment],
            inner_steps=last_step - held.first_step,
            tokens=held.tokens,
            first_step=held.first_step,
            last_step=last_step,
            data=held.data[:RANGES_MAX],
            held=self._anchors.held(fragment, trains_on=self._settings.overlap_steps > 0),
        )

    def _payload(self, fragment: int, codec: CodecName) -> Payload:
        if not (has_feedback(codec) or self._landing.residuals.owes(fragment)):
            return self._anchors.pseudo_gradient(fragment, codec)
        delta = self._anchors.pseudo_gradient(fragment)
        values = delta.memory.view(np.float32)

        def finish() -> None:
            delta.finish()
            self._landing.residuals.load(fragment, values)

        return Values(values, codec, Later(finish))

    def merge_all(self, until: float | None = None) -> None:
        """Merge everything that is pending, as ``merge`` does."""
        for fragment in self.fragments:
            self.merge(fragment, until)

    def merge_landed(self, fragments: Iterable[int] | None = None) -> None:
        """Merge what is to be merged by now, of these fragments or of all, as ``merge`` does."""
        for fragment in self.fragments if fragments is None else fragments:
            flight = self._pending.get(fragment)
            if flight is not None and flight.lands_at <= self.tally.inner_step:
                self.merge(fragment)

    def make_way(self, groups: int) -> None:
        """Merge before its time what the next push of so many groups would come after."""
        revisions, pending = self._anchors.revisions, self._pending
        for fragment in self._turns.in_the_way(revisions, pending, groups):
            self.merge(fragment)

    def before_step(self) -> None:
        """The optimizer may change the parameters from now on."""
        self._anchors.before_step()

    def merge(self, fragment: int, until: float | None = None) -> None:
        """Wait for a pending fragment and write it into the model; nothing if it is not pending.

        Raises:
            TrainingDiverged: nobody's push has counted for ``BARREN_MAX`` rounds.
            RunOver, TookTooLong, SynclineError: as ``Waiting.settled`` does.
        """
        flight = self._pending.get(fragment)
        if flight is None:
            return
        push = flight.push
        of_round = push.kind == pb.PUSH_KIND_PSEUDO_GRADIENT
        say = (lambda: self._say_waiting(push)) if of_round else None
        beside = {number: other.result for number, other in self._pending.items()}
        conclusion, outcome = self._waiting.settled(fragment, flight.result, until, say, beside)
        self._landing.settle(push, conclusion, outcome)
        # It was read, and the model does not have it; the next push names it, so it is done once.
        self._unpushed[fragment] = self._unpushed[fragment].more(0, outcome.lost)
        if conclusion.step is Step.REBASE or outcome.anomalous:
            self.eager.forget(fragment)
        if conclusion.step is Step.REBASE:
            self._landing.rebase(flight, outcome)
            self._landed(push, outcome)
            self._came_late(flight)
            self._verdicts.barren(fragment, conclusion, outcome)
            return
        # Where nothing was trained meanwhile, the value itself: a sum would round it.
        is_kept = self.tally.inner_step > push.last_step and not conclusion.non_finite
        self._landing.adopt(fragment, outcome, flight.start if is_kept else None)
        self._landed(push, outcome)
        if conclusion.non_finite:
            self._forget_steps(fragment)
            self._is_sick = self._settings.overlap_steps > 0 or self._settings.fragment_groups > 1
        self.eager.see(fragment, outcome)
        self._verdicts.judged(fragment, outcome)
        self._verdicts.barren(fragment, conclusion, outcome)

    def _landed(self, push: Push, outcome: Outcome) -> None:
        """It is written. Not before: who goes on without memory for that is to find it pending."""
        del self._pending[push.fragment]
        self._turns.landed(push.fragment)
        if not outcome.is_kept:
            self._anchors.scratch.give_back(push.payload.memory)

    def _forget_steps(self, fragment: int) -> None:
        """What was trained with values that are not finite is no progress, nor fit for the next."""
        self._unpushed[fragment] = self._unpushed[fragment].forgotten(self.tally.inner_step)
        for parameter in self._anchors.parameters_of(fragment):
            self._optimizer.state.pop(parameter, None)

    def heal(self) -> None:
        """Go back to all anchors where values that were not finite may have spread to the others.

        Between two steps: what a forward pass has used must not change before its backward.
        """
        if not self._is_sick:
            return
        self._is_sick = False
        for fragment in self.fragments:
            self._landing.restore(fragment)
            self._forget_steps(fragment)
            if (flight := self._pending.get(fragment)) is not None:
                start = self._anchors.current(fragment) if flight.start is not None else None
                self._pending[fragment] = replace(flight, start=start, back=None, is_undone=True)
        self.eager.clear()

    def drop_progress(self) -> None:
        """Go back to the anchors: what was not pushed in time will not be."""
        for fragment in self.fragments:
            self._landing.restore(fragment)
        self.start_over()

    def forget(self) -> list[str]:
        """Nothing that is pending will be merged.

        Returns:
            Names of the fragments whose progress stays out of the run.
        """
        left = sorted({*self._pending, *self._ready()})
        self._pending.clear()
        return [self._names[fragment] for fragment in left]

    def take(self, futures: Sequence[Future[Outcome]], until: float | None = None) -> bool:
        """Write pulled values into the model, once those of all fragments are there.

        Returns False, and writes none, if the synchronous phase went on, or began again, meanwhile.

        Raises:
            RunOver, TookTooLong, SynclineError: as ``Waiting.settled`` does.
        """
        ends = [
            self._waiting.settled(fragment, future, until)
            for fragment, future in enumerate(futures)
        ]
        if any(conclusion.step is not Step.MERGE for conclusion, _ in ends):
            return False
        for fragment, (_, outcome) in enumerate(ends):
            self._landing.adopt(fragment, outcome)
        return True

    def _say_waiting(self, push: Push) -> None:
        """Say whom the round of a push waits for, if it is open still when that is known."""

        def say(state: pb.FragmentState) -> None:
            if state.revision == push.base:
                self._log.info("round.waits", **of_waiting(state, self._settings))

        self._exchange.look(push.fragment, say)

    def _came_late(self, flight: Flight) -> None:
        """Count what it held as not pushed."""
        push, held = flight.push, self._unpushed[flight.push.fragment]
        self.tally.stale += 1
        self.owed += self._turns.came_late(push.fragment)
        held = held.after_undone(push) if flight.is_undone else held.after(push)
        self._unpushed[push.fragment] = held
        if push.fragment == self.fragments[-1]:
            self.tally.since_sync, self.tally.pushed = self.tally.since_sync + self.tally.pushed, 0
