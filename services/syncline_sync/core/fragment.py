"""One fragment's rounds: which push is taken, who is waited for, when a round closes.

Pure: callers hand in ``now_s``, seconds on a clock that never runs backward. The caller keeps
the order judge -> (due -> close -> outer step -> store -> publish -> ``published``), one at a time,
and has folded what counts by the outer step, or steps it as it came.

Invariants:
    - revision and gradient_step only grow (but for a synchronous phase that starts anew);
    - a push is folded at most once, and only by the member that holds the incarnation;
    - who is expected is fixed when a round opens: whoever has pushed before, in time or late, and
      is alive; losses only shrink it, joins never grow it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from syncline_proto.errors import InvalidRequest
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import detector, ended, policy, refusals, weights
from syncline_sync.core.ending import Ending
from syncline_sync.core.members import Members
from syncline_sync.core.phase import Phase, is_synchronous, offer_of
from syncline_sync.core.record import ClosedBy, Closing, Judgement, Kind, Saved, WholePush
from syncline_sync.core.round import Round
from syncline_sync.core.staleness import oldest
from syncline_sync.core.window import Window, forgotten

NORMS_ANEW = "Codec, interval or strategy changed: norms are learnt anew."
PHASE_ANEW = "Everyone in the synchronous phase is gone: it starts again."


class Fragment:
    """The decisions of one fragment of one run."""

    def __init__(
        self,
        settings: RunSettings,
        saved: Saved | None = None,
        *,
        number: int = 0,
        ending: Ending | None = None,
        epoch: int = 1,
        offer: Saved | None = None,
    ) -> None:
        """Fragment ``number`` of a run, whose fragments share ``ending``; or the only one.

        ``epoch`` is the run's; where something is ``saved``, it is of that epoch, too. ``offer``
        is what was stored beside an offer, if there is one.
        """
        self.settings = settings
        self.saved = saved or Saved(epoch=epoch, measured=detector.measured(settings))
        self.initialised = saved is not None
        self._members = Members(self.saved.taking_part)
        self.running = True
        self._next_settings = settings
        self._round: Round | None = None
        self._pace = policy.Pace()
        self._phase = Phase(number, ending or Ending(), offer)
        if self.saved.revision > 0:
            self._phase.passed()

    @property
    def members(self) -> Mapping[str, int]:
        """Replica -> incarnation of those that hold their lease."""
        return self._members.alive

    @property
    def synchronous(self) -> bool:
        """Whether the run is in its synchronous phase: gradients are averaged at every step."""
        return is_synchronous(self.saved, self.settings.warmup_steps)

    @property
    def _begins(self) -> bool:
        """Whether no round has closed since the run began, be it from a checkpoint."""
        return self.saved.revision == 0 or not self.saved.last

    @property
    def is_open(self) -> bool:
        """Whether a round is open: with a push in it, in time or late."""
        return self._round is not None

    @property
    def arrived(self) -> tuple[str, ...]:
        """Whose push of the open round is in, in time; of a push that is a round, in at all."""
        r = self._round
        if r is None:
            return ()
        return tuple(r.arrived if r.window is None else sorted(r.replicas))

    @property
    def expected(self) -> tuple[str, ...]:
        return tuple(sorted(self._round.expected)) if self._round else ()

    @property
    def has_settled(self) -> bool:
        """Whether nothing is open that was trained on data of lives that are gone."""
        return self._round is None or not self._round.has_data_of_gone(self.members)

    @property
    def offer(self) -> Saved | None:
        """What to store beside an offer that waits for those of other fragments."""
        return offer_of(self.saved, self._round)

    def keep_offer(self) -> None:
        """The offer is stored; from now on it counts."""
        self._phase.offered(self.saved)

    @property
    def is_deserted(self) -> bool:
        """Whether nobody is left in the synchronous phase: to ``adopt`` once more ends it."""
        under_way = self.synchronous and self.saved.gradient_step > 0
        return under_way and not (self._phase.has_ended or self._members.inside(self._round))

    def look_at_s(self, now_s: float) -> float | None:
        """When the open round may close by itself; None while only an event can bring that."""
        if self._round is None or not self.running:
            return None
        return policy.look_at_s(self._round, self.settings, self._pace, now_s)

    def adopt(
        self,
        now_s: float,
        members: Mapping[str, int],
        settings: RunSettings,
        running: bool,
        came: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Take over the run's members (replica -> incarnation), settings and state.

        ``came``: who has opened the run, and so may be gone by now.

        Returns what is worth telling of the run, as every fragment does. Settings count from the
        next round on; a pause, or a time with fewer members than the minimum, gives the open round
        its whole deadline anew.
        """
        could_close = self.running and len(self.members) >= self.settings.min_replicas
        goes_on = running and len(members) >= settings.min_replicas and not could_close
        self._members.adopt(members, came, begins=self._begins)
        self._next_settings, self.running = settings, running
        self._take_up_offer(now_s)
        told = list(self._take_settings()) if self._round is None else []
        r = self._round
        if r is not None:
            r.lose(r.expected - self._members.taking_part.keys())
            r.resumed_s = now_s if goes_on else r.resumed_s
        inside = self._members.inside(r)
        anew = self._phase.begun_anew(self.saved, inside) if self.synchronous else None
        if anew is not None:
            if self.saved.gradient_step or r is not None:
                told.append(PHASE_ANEW)
            self.saved, self._round, self._members.taking_part = anew, None, {}
        return tuple(told)

    def fenced(
        self, members: Mapping[str, int], replica: str, incarnation: int
    ) -> Judgement | None:
        """The answer to a replica that does not hold its lease (any more); None if it does."""
        return refusals.fenced(members, replica, incarnation, self.saved.revision)

    def last_seq(self, replica: str, incarnation: int) -> int:
        """The largest ``seq`` of this life's pushes that are in a round; 0 without any."""
        return refusals.last_seq(self._round, self.saved, replica, incarnation)

    def early(
        self,
        members: Mapping[str, int],
        replica: str,
        incarnation: int,
        seq: int,
        kind: Kind | None,
        epoch: int,
        answered: Judgement | None = None,
    ) -> Judgement | None:
        """The answer to a push that is none of its values' matter; None if these are to come in.

        ``kind`` is None where a header names none that there is; ``answered`` is what was said to
        the very same push already.
        """
        early = self.fenced(members, replica, incarnation) or answered
        early = early or self._known(replica, incarnation, seq)
        # A gradient names the epoch that its rank knows of, and ranks may know of two.
        if early is None and kind is Kind.PSEUDO_GRADIENT:
            early = self._of_another_epoch(epoch)
        return early

    def answer_late(self, push: WholePush) -> Judgement | None:
        """Answer a push whose round has closed, whatever its norm: STALE; None for any other.

        Who sends one is at work, and from now on is waited for in the rounds to come: to ask twice
        is as good as once.

        Raises:
            InvalidRequest: it contradicts where the run stands.
        """
        saved, settings = self.saved, self.settings
        if push.kind is Kind.PARAMETERS or push.epoch != saved.epoch or not self.initialised:
            return None
        size = self._window().size if settings.asynchronous else 1
        limit = oldest(settings.age_max, size)
        late = refusals.late(saved, settings.warmup_steps, limit, push)
        if late is not None and refusals.goes_on(saved, self._round, self.synchronous, push):
            self._members.goes_on(push.replica, push.incarnation)
        return late

    def judge(self, now_s: float, push: WholePush) -> Judgement:
        """Give a whole push its verdict; an accepted one enters the open round.

        Raises:
            InvalidRequest: the push contradicts where the run stands; nothing has changed.
        """
        early = self.early(
            self.members, push.replica, push.incarnation, push.seq, push.kind, push.epoch
        )
        if early is not None:
            return early
        if push.kind is Kind.PARAMETERS:
            return self._judge_offer(now_s, push)
        if not self.initialised:
            raise InvalidRequest(
                "push: the fragment has no revision 0 yet; offer PARAMETERS first."
            )
        if push.kind is Kind.GRADIENT and (past := self._of_another_epoch(push.epoch)):
            return past
        if (late := self.answer_late(push)) is not None:
            return late
        if (second := refusals.another(self._round, self.saved, push)) is not None:
            return second
        return self._enter(now_s, push)

    def due(self, now_s: float) -> ClosedBy | None:
        """Whether the open round may close now, and why."""
        r = self._round
        if r is None:
            return None
        if r.kind is Kind.PARAMETERS:
            return ClosedBy.OFFER if r.result == 0 or self._phase.has_ended else None
        under_way = r.kind is Kind.GRADIENT and self.saved.gradient_step > 0
        wishes = policy.wishes(
            self.settings,
            self._begins,
            len(self._members.taking_part) if under_way else None,
            self._members.gone,
            len(self.members),
        )
        return policy.due(r, self.settings, wishes, self._pace, now_s, self.running)

    def close(self, closed_by: ClosedBy) -> Closing:
        """End the open round; the fragment now stands at its result, which is yet to be stored."""
        r = self._round
        assert r is not None, "no round is open"
        self._members.closed(r)
        if r.kind is not Kind.PARAMETERS:
            self._pace = self._pace.after(r)
        before, settings = self.saved, self.settings
        self.saved, told = ended.after(before, r, settings, self.members, self._members.taking_part)
        self.initialised, self._round = True, None
        told_of_run = self._take_settings()
        return ended.closing_of(before, r, closed_by, settings, self.saved, told, told_of_run)

    def published(self, seconds: float) -> None:
        """What ``close`` returned is published, so long after that."""
        self._pace = replace(self._pace, publication_s=seconds)

    def _take_settings(self) -> tuple[str, ...]:
        """Let new settings count, between two rounds; statistics that they spoil start anew."""
        self.settings = self._next_settings
        measured = detector.measured(self.settings)
        if self.saved.measured == measured:
            return ()
        window = forgotten(self.saved.window)
        statistics = detector.Statistics()
        self.saved = replace(self.saved, statistics=statistics, measured=measured, window=window)
        return (NORMS_ANEW,)

    def _known(self, replica: str, incarnation: int, seq: int) -> Judgement | None:
        """DUPLICATE for a push that the open round or a committed one contains; else None."""
        gaps, life = self.settings.age_max > 0, (replica, incarnation)
        inside = refusals.inside(self._round, self.saved.revision, *life, seq, gaps)
        return inside or refusals.known(self.saved, *life, seq, gaps)

    def _of_another_epoch(self, epoch: int) -> Judgement | None:
        """STALE for progress since a revision of another ``epoch``; None if it is of this one.

        That revision need not be here, whatever its number. Every rank of a replica is told the
        same, and the others may have no reason to push once more: do not wait for them.
        """
        return refusals.another_epoch(self.saved, epoch) if self.initialised else None

    def _enter(self, now_s: float, push: WholePush) -> Judgement:
        """Judge a push by its norm, weigh it, and put it into the round.

        Raises:
            InvalidRequest: it names too much leased data; nothing has changed.
        """
        statistics, rules = self.saved.statistics, self.settings.penalty
        if push.kind is Kind.GRADIENT:
            finding = detector.of_gradient(push.norm)
        else:
            finding = detector.inspect(statistics, rules, push.replica, push.norm, push.inner_steps)
        refusals.check_data(self.saved, self._round, push, finding.reason if finding.bad else "")
        r, age = self._opened(now_s, push.kind), refusals.age_of(self.saved, push)
        entered = r.enter(now_s, push, finding, self.settings, age)
        judgement = Judgement(
            verdict=entered.verdict,
            result=r.result,
            reason=f"{push.replica} does not count: {finding.reason}." if finding.bad else "",
            weight=entered.folded,
            rescale=entered.rescale,
            non_finite=not detector.is_finite(push.norm),
        )
        if age and r.window is None:
            return refusals.late_answer(judgement, self.saved.revision)
        return judgement

    def _judge_offer(self, now_s: float, push: WholePush) -> Judgement:
        """PARAMETERS: revision 0 from nothing, or revision 1 when the synchronous phase ends."""
        saved, steps, is_set = self.saved, self.settings.warmup_steps, self.initialised
        refused = refusals.offer(saved, self._round, steps, push, is_set=is_set)
        if refused is not None:
            return refused
        r = self._round = self._new_round(now_s, push.kind, 0 if push.base is None else 1)
        r.enter(now_s, push, detector.Finding(False, 0.0), self.settings)
        return Judgement(verdict=pb.VERDICT_ACCEPTED, result=r.result, sets=True)

    def _take_up_offer(self, now_s: float) -> None:
        """Go on with an offer that was stored before a restart, unless it is of another phase."""
        offer = self._phase.kept_offer(self.saved)
        if offer is not None and self.synchronous and self._round is None:
            r = self._round = self._new_round(now_s, Kind.PARAMETERS, 1)
            r.entries, r.total = {(c.replica, False): c for c in offer.contributions}, 1.0
            self.keep_offer()

    def _opened(self, now_s: float, kind: Kind) -> Round:
        """The open round, opened now if there is none."""
        if self._round is None:
            gradient = kind is Kind.GRADIENT
            before = self.saved.gradient_step if gradient else self.saved.revision
            self._round = self._new_round(now_s, kind, before + 1)
        return self._round

    def _new_round(self, now_s: float, kind: Kind, result: int) -> Round:
        offer = kind is Kind.PARAMETERS
        in_window = self.settings.asynchronous and kind is Kind.PSEUDO_GRADIENT
        return Round(
            kind=kind,
            result=result,
            opened_s=now_s,
            expected=frozenset() if offer else frozenset(self._members.taking_part),
            scale=weights.scale_of(self.saved.statistics, self.settings.penalty),
            window=self._window() if in_window else None,
        )

    def _window(self) -> Window:
        """What a push that comes now is of, in a run whose rounds do not wait."""
        window = self.saved.window
        size = window.size_now(self.settings, len(self._members.taking_part))
        return replace(window, size=size)
