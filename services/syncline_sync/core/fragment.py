"""One fragment's rounds: which push is taken, who is waited for, when a round closes.

Pure: callers hand in ``now_s``, seconds on a clock that never runs backward. The caller keeps
the order judge -> fold -> (due -> close -> outer step -> store -> publish -> ``published``), one at
a time.

Invariants:
    - revision and gradient_step only grow (but for a synchronous phase that starts anew);
    - a push is folded at most once, and only by the member that holds the incarnation;
    - who is expected is fixed when a round opens: whoever has pushed before, in time or late, and
      is alive; losses only shrink it, joins never grow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from syncline_proto.errors import InvalidRequest
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import detector, ended, policy, refusals, weights
from syncline_sync.core.ending import Ending
from syncline_sync.core.record import ClosedBy, Closing, Judgement, Kind, Saved, WholePush
from syncline_sync.core.round import Round
from syncline_sync.core.staleness import oldest
from syncline_sync.core.window import Window, forgotten

ACCEPTED = pb.VERDICT_ACCEPTED
ANOMALOUS = pb.VERDICT_ANOMALOUS


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
        self._number, self._ending = number, ending or Ending()
        self.saved = saved or Saved(epoch=epoch, measured=detector.measured(settings))
        self.initialised = saved is not None
        self.members: Mapping[str, int] = {}
        self.running = True
        self._next_settings = settings
        self._round: Round | None = None
        self._pace = policy.Pace()
        self._taking_part: dict[str, int] = dict(self.saved.taking_part)
        self._gone: set[str] = set()
        """Who came before the first round closed, and has lost its lease or left before it."""
        self._offer = offer
        if self.saved.revision > 0:
            self._ending.offered(number, self._ending.phase)

    @property
    def synchronous(self) -> bool:
        """Whether the run is in its synchronous phase: gradients are averaged at every step."""
        return self.settings.warmup_steps > 0 and self.saved.revision == 0

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
        r = self._round
        if r is None or r.kind is not Kind.PARAMETERS or r.result == 0:
            return None
        return replace(self.saved, contributions=r.contributions())

    def keep_offer(self) -> None:
        """The offer is stored; from now on it counts."""
        self._ending.offered(self._number, self.saved.phase)

    def look_at_s(self, now_s: float) -> float | None:
        """When the open round may close by itself; None while only an event can bring that."""
        if self._round is None or not self.running:
            return None
        return policy.look_at_s(self._round, self.settings, self._pace, now_s)

    def adopt(
        self, now_s: float, members: Mapping[str, int], settings: RunSettings, running: bool
    ) -> tuple[str, ...]:
        """Take over the run's members (replica -> incarnation), settings and state.

        Returns what is worth telling. Settings count from the next round on; a pause, or a time
        with fewer members than the minimum, gives the open round its whole deadline anew.
        """
        closed_before = self.running and len(self.members) >= self.settings.min_replicas
        goes_on = running and len(members) >= settings.min_replicas and not closed_before
        if self._begins:
            self._gone = (self._gone | self.members.keys()) - members.keys()
        self._next_settings, self.members, self.running = settings, dict(members), running
        self._take_up_offer(now_s)
        told = list(self._take_settings()) if self._round is None else []
        self._taking_part = self._alive(self._taking_part)
        r = self._round
        if r is not None:
            r.lose(r.expected - self._taking_part.keys())
            r.resumed_s = now_s if goes_on else r.resumed_s
        if self._phase_is_lost():
            self._ending.lost(self.saved.phase)
        if self.synchronous and self.saved.phase < self._ending.phase:
            if self.saved.gradient_step or self._round is not None:
                told.append("everyone in the synchronous phase is gone: it starts again")
            self.saved = ended.begun_anew(self.saved, self._ending.phase)
            self._round, self._taking_part = None, {}
        return tuple(told)

    def fenced(
        self, members: Mapping[str, int], replica: str, incarnation: int
    ) -> Judgement | None:
        """The answer to a replica that does not hold its lease (any more); None if it does."""
        return refusals.fenced(members, replica, incarnation, self.saved.revision)

    def known(self, replica: str, incarnation: int, seq: int) -> Judgement | None:
        """DUPLICATE for a push that the open round or a committed one contains; else None."""
        gaps, life = self.settings.age_max > 0, (replica, incarnation)
        inside = refusals.inside(self._round, self.saved.revision, *life, seq, gaps)
        return inside or refusals.known(self.saved, *life, seq, gaps)

    def last_seq(self, replica: str, incarnation: int) -> int:
        """The largest ``seq`` of this life's pushes that are in a round; 0 without any."""
        return refusals.last_seq(self._round, self.saved, replica, incarnation)

    def of_another_epoch(self, epoch: int) -> Judgement | None:
        """STALE for progress since a revision of another ``epoch``; None if it is of this one.

        That revision need not be here, whatever its number. Every rank of a replica is told the
        same, and the others may have no reason to push once more: do not wait for them.
        """
        return refusals.another_epoch(self.saved, epoch) if self.initialised else None

    def judge(self, now_s: float, push: WholePush) -> Judgement:
        """Give a whole push its verdict; an accepted one enters the open round.

        Raises:
            InvalidRequest: the push contradicts where the run stands; nothing has changed.
        """
        refused = self.fenced(self.members, push.replica, push.incarnation) or self.known(
            push.replica, push.incarnation, push.seq
        )
        if refused is not None:
            return refused
        if push.kind is Kind.PARAMETERS:
            return self._judge_offer(now_s, push)
        if not self.initialised:
            raise InvalidRequest(
                "push: the fragment has no revision 0 yet; offer PARAMETERS first."
            )
        ended = self.of_another_epoch(push.epoch)
        if ended is not None:
            return ended
        late = self._late(push)
        if late is not None:
            if refusals.goes_on(self.saved, self._round, self.synchronous, push):
                # So rounds that open from now on wait for it.
                self._taking_part[push.replica] = push.incarnation
            return late
        refusals.check_data(self.saved, self._round, push.data)
        return self._enter(now_s, push)

    def due(self, now_s: float) -> ClosedBy | None:
        """Whether the open round may close now, and why."""
        r = self._round
        if r is None:
            return None
        if r.kind is Kind.PARAMETERS:
            return ClosedBy.OFFER if r.result == 0 or self._ending.decided else None
        under_way = r.kind is Kind.GRADIENT and self.saved.gradient_step > 0
        wishes = policy.wishes(
            self.settings,
            self._begins,
            len(self._taking_part) if under_way else None,
            self._gone,
            len(self.members),
        )
        return policy.due(r, self.settings, wishes, self._pace, now_s, self.running)

    def close(self, closed_by: ClosedBy) -> Closing:
        """End the open round; the fragment now stands at its result, which is yet to be stored."""
        r = self._round
        assert r is not None, "no round is open"
        if r.kind is Kind.GRADIENT:
            # Who missed one step may have left the phase; otherwise it is heard of again.
            for replica in r.expected - r.arrived.keys():
                self._taking_part.pop(replica, None)
        if r.kind is not Kind.PARAMETERS:
            # Who has lost its lease since it pushed must not be waited for in the next round.
            accepted = [c for c in r.contributions() if c.verdict == ACCEPTED]
            self._taking_part |= self._alive({c.replica: c.incarnation for c in accepted})
            self._pace = self._pace.after(r)
        outer, carry = ended.outer_of(self.saved, r, self.settings)
        self.saved, told = ended.after(
            self.saved, r, self.settings, self.members, self._taking_part
        )
        self.initialised = True
        self._round = None
        # What a run begins with has nothing to go back to: offers and mean gradients come first.
        behind = r.kind is Kind.PSEUDO_GRADIENT and self.settings.durability == "async"
        told += self._take_settings()
        return Closing(
            kind=r.kind,
            closed_by=closed_by,
            total_weight=r.total,
            pushes=r.window.size if r.window else 1,
            outer=outer,
            carry=carry,
            saved=self.saved,
            opened_s=r.opened_s,
            effective_sample_size=ended.effective_sample_size(r),
            behind=behind,
            told=told,
        )

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
        return ("codec, interval or strategy changed: norms are learnt anew",)

    def _alive(self, replicas: Mapping[str, int]) -> dict[str, int]:
        """Those of ``replicas`` (-> incarnation) that hold their lease."""
        return {r: i for r, i in replicas.items() if self.members.get(r) == i}

    def _phase_is_lost(self) -> bool:
        """Whether the synchronous phase is under way, and everyone in it is gone.

        Everyone: who takes part, or has pushed in the open round.
        """
        if not (self.synchronous and self.saved.gradient_step) or self._ending.decided:
            return False
        arrived = self._round.arrived if self._round else {}
        inside = {c.replica: c.incarnation for c in arrived.values() if c.verdict == ACCEPTED}
        return not (self._taking_part or self._alive(inside))

    def _late(self, push: WholePush) -> Judgement | None:
        """STALE for a push whose round has closed, or that already has a push in the open one."""
        settings, r = self.settings, self._round
        size = self._window().size if settings.asynchronous else 1
        limit, age = oldest(settings.age_max, size), self._age(push)
        late = refusals.late(self.saved, settings.warmup_steps, limit, push)
        return late or refusals.another(r, self.saved.revision, push.replica, is_late=age > 0)

    def _age(self, push: WholePush) -> int:
        """Revisions between a push's base and the one that the open round starts from."""
        if push.kind is not Kind.PSEUDO_GRADIENT or push.base is None:
            return 0
        return self.saved.revision - push.base

    def _enter(self, now_s: float, push: WholePush) -> Judgement:
        """Judge a push by its norm, weigh it, and put it into the round."""
        r, age = self._opened(now_s, push.kind), self._age(push)
        statistics, rules = self.saved.statistics, self.settings.penalty
        if push.kind is Kind.GRADIENT:
            why = detector.unfit(push.norm)
            finding = detector.Finding(bool(why), 0.0, why)
        else:
            finding = detector.inspect(statistics, rules, push.replica, push.norm, push.inner_steps)
        entered = r.enter(now_s, push, finding, self.settings, age)
        judgement = Judgement(
            verdict=entered.verdict,
            judged=entered.verdict,
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
        return Judgement(verdict=ACCEPTED, judged=ACCEPTED, result=r.result, sets=True)

    def _take_up_offer(self, now_s: float) -> None:
        """Go on with an offer that was stored before a restart, unless it is of another phase."""
        offer, self._offer = self._offer, None
        if offer is None or not self.synchronous or self._round is not None:
            return
        if (offer.phase, offer.gradient_step) == (self.saved.phase, self.saved.gradient_step):
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
            expected=frozenset() if offer else frozenset(self._taking_part),
            scale=weights.scale_of(self.saved.statistics, self.settings.penalty),
            window=self._window() if in_window else None,
        )

    def _window(self) -> Window:
        """What a push that comes now is of, in a run whose rounds do not wait."""
        window = self.saved.window
        size = window.size_now(self.settings, len(self._alive(self._taking_part)))
        return replace(window, size=size)
