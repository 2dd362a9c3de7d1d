"""What a loop may ask of its replica, at any time and on any thread; nothing here does anything."""

from __future__ import annotations

from collections.abc import Mapping

from syncline.alone import Alone
from syncline.life import Life
from syncline.reports import Moment, Reports
from syncline.session import Session
from syncline.stats import Stats, stats_of
from syncline.tally import Phase
from syncline.wish import Wish
from syncline_proto.rest import Registration
from syncline_proto.settings import RunSettings


class Facts:
    """What there is to know of one replica."""

    def __init__(self, wish: Wish | None, session: Session | Alone) -> None:
        """``wish`` is None where it trains alone."""
        self._wish = wish
        self._session = session
        self._life: Life | None = None
        self._reports = Reports()

    @property
    def _registration(self) -> Registration | None:
        return self._life.registration if self._life else None

    @property
    def active(self) -> bool:
        """Whether it takes part in a run (or will, once started)."""
        return self._wish is not None

    @property
    def name(self) -> str:
        if self._registration is not None:
            return self._registration.replica
        return self._wish.replica if self._wish else "alone"

    @property
    def run(self) -> str:
        """The run's name; "alone" without one."""
        return self._wish.run if self._wish else "alone"

    @property
    def incarnation(self) -> int:
        """Which life of the name this is; 0 before it has joined."""
        return self._registration.incarnation if self._registration else 0

    @property
    def ordinal(self) -> int:
        """The place of this replica's name among the run's, from 0; kept over restarts."""
        return self._registration.ordinal if self._registration else 0

    @property
    def settings(self) -> RunSettings:
        """The run's settings, as adopted; live changes arrive between two rounds."""
        return self._session.settings

    @property
    def phase(self) -> Phase:
        return self._session.phase

    @property
    def done(self) -> bool:
        """Leave the loop: the run has ended, its budget is committed, or this replica drains."""
        return self._session.done

    @property
    def drained(self) -> bool:
        """It ended because it was asked to leave; the run goes on."""
        return self._session.drained

    @property
    def last_round(self) -> bool:
        """The push just made is expected to reach the token budget.

        It is not merged yet: evaluate the replica's own parameters inside ``unsynced()``, then
        call ``finish()``. Where groups are pushed one after another all push once more after it:
        what the run ends with is there when ``done``.
        """
        return self._session.last_round

    @property
    def run_tokens(self) -> int:
        """What schedules count: committed tokens, plus this replica's since times the replicas.

        By time (``sync_seconds``): times what all brought to the last round for each of its own.
        Counts whole inner steps, and is equal on all ranks.
        """
        return self._session.run_tokens

    @property
    def lr_factor(self) -> float:
        """Multiply the learning rate of the next step by this.

        Ask after ``synchronize`` or its forward pass. It is 1, but for the first steps of a
        replica that has joined a run under way without a state of its optimizer
        (``join_ramp_steps``). Equal on all ranks.
        """
        return self._session.lr_factor

    @property
    def committed_tokens(self) -> int:
        """Tokens of everyone, up to the revision that was merged last."""
        return self._session.tally.committed

    @property
    def revision(self) -> int:
        """The smallest over the fragments."""
        return self._session.revision

    @property
    def inner_step(self) -> int:
        """Optimizer steps of this incarnation."""
        return self._session.tally.inner_step

    @property
    def tokens(self) -> int:
        """Of this replica, in finished inner steps of this incarnation."""
        return self._session.tally.tokens

    @property
    def stats(self) -> Stats:
        return stats_of(self._session)

    @property
    def tokens_per_second(self) -> float | None:
        """As the loop last reported it, else as heartbeats measure it; None before that is known.

        Any thread may ask.
        """
        pulse = self._life.pulse if self._life else None
        return self.reported.get("tokens_per_second", pulse.pace if pulse else None)

    @property
    def reported(self) -> Mapping[str, float]:
        """The figures last given to ``report``, of a GPU as far as known; any thread may ask."""
        self._reports.see()
        return self._reports.said

    @property
    def _now(self) -> Moment:
        return Moment(self.run_tokens, self.inner_step)
