"""Rank 0's ear and word: what the control plane says, and what the replica does about it.

Only rank 0 has a heartbeat and calls the control plane; what it decides reaches the other ranks
through collectives. Never touches the model or the sync service.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from structlog.typing import FilteringBoundLogger

from syncline.control import ControlClient
from syncline.core.agreement import Order
from syncline.core.plan import Act, Heard, after_step
from syncline.heartbeat import ENDED, Pulse
from syncline.ranks import Ranks
from syncline.recall import OPERATOR, Recall
from syncline_proto.differing import changes
from syncline_proto.errors import SynclineError
from syncline_proto.rest import RunState
from syncline_proto.settings import RunSettings

END_GRACE_S = 10.0
"""The last round of a finished run is waited for this long; it is published, unless it is not ours.

A stopped run publishes nothing more, so nothing is waited for.
"""

UNHEARD = "the run is finished once no replica is alive"
"""What becomes of a run whose end nobody could tell."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """Settings that all ranks have adopted."""

    settings: RunSettings
    version: int


class Helm:
    """Decisions that are equal on all ranks."""

    def __init__(
        self,
        ranks: Ranks,
        run: str,
        client: ControlClient | None,
        pulse: Pulse | None,
        recall: Recall,
        round_deadline_s: float,
        log: FilteringBoundLogger,
    ) -> None:
        """``client`` and ``pulse`` are rank 0's; the other ranks have none.

        ``recall`` is set when somebody asks the replica to leave, on any rank; what ranks tell one
        another sets it on all. ``log`` is silent on the other ranks.
        """
        self.recall = recall
        self._round_deadline_s = round_deadline_s
        self._has_said_draining = False
        self._drains_since: float | None = None
        self.joining = True
        """Nothing has been trained yet: who is recalled then waits for nothing."""
        self._ranks, self._run, self._client, self._pulse = ranks, run, client, pulse
        self._log = log
        self._ended_at: float | None = None
        self._ending = False

    def decide(
        self, steps: int, due: int, must: bool, warming: bool, version: int, tokens: int
    ) -> tuple[Act, int, int]:
        """Rank 0's decision after an inner step: what, and how many groups are due.

        With it comes how many tokens that step had. ``steps`` are those since the last push;
        ``must``: another one is to be made even where nothing is ``due``. A rank that was asked to
        leave says so here, and then all do.

        With several ranks these are rank 0's tokens times the ranks, so that a schedule that
        counts them is equal on all; a push adds up what each really had.
        """
        act = leaving = Act.NOTHING
        if self._ranks.first:
            heard, is_due = self._heard(version), due > 0 or must
            act = after_step(steps, is_due, warming, heard)
            leaving = after_step(steps, is_due, warming, replace(heard, drain=True))
        tokens *= self._ranks.count
        told = self._ranks.gather([act, leaving, due, tokens, self.recall.is_set()])
        act, leaving, due, tokens, _ = told[0]
        is_asked = self.recall.hear(bool(asked) for *_, asked in told)
        return Act(leaving if is_asked else act), due, tokens

    def agree(self, due: int) -> int:
        """How many groups are due, as rank 0 has it."""
        return self._ranks.of_first([due])[0]

    @property
    def step_share(self) -> float:
        """Of a round's inner steps, so many are asked of this replica; rank 0 alone hears of it.

        That is enough: what it finds due, all ranks push.
        """
        return self._pulse.news.step_share if self._pulse is not None else 1.0

    def news(self, version: int) -> RunSettings | None:
        """Settings that have come since those of ``version``; rank 0 alone hears of any."""
        if self._pulse is None or self._pulse.news.settings_version == version:
            return None
        return self._pulse.news.settings

    def order(self) -> Order:
        """What rank 0 wants of a wait, after what it has heard meanwhile; asked on rank 0 only."""
        assert self._pulse is not None
        news = self._pulse.news
        if news.lost is not None:
            return Order.STOP
        if self.joining and self.recall.is_set():
            return Order.ABANDON
        if self._is_late_to_leave():
            return Order.ABANDON
        if news.ended and not self._ending:
            self._ended_at = self._ended_at or time.monotonic()
            grace_s = END_GRACE_S if news.run_state is RunState.FINISHED else 0.0
            if time.monotonic() - self._ended_at >= grace_s:
                return Order.ABANDON
        if news.run_state is RunState.PAUSED:
            return Order.HOLD
        return Order.SHORT if news.short else Order.GO_ON

    def end(self) -> None:
        """From here on the run's end is known, and is no reason to give up a wait."""
        self._ending = True

    def new_settings(self, old: RunSettings) -> Adopted:
        """The settings that rank 0 last heard, for all ranks, in place of the ``old`` ones."""

        def told() -> dict[str, object]:
            assert self._pulse is not None
            news = self._pulse.news
            return {"version": news.settings_version, "settings": news.settings.model_dump()}

        new = self._ranks.share(told)
        adopted = Adopted(RunSettings.model_validate(new["settings"]), new["version"])
        what = changes(old, adopted.settings)
        self._log.info("settings.changed", version=adopted.version, what=what)
        return adopted

    def is_called_off(self) -> bool:
        """Whether the replica was recalled before it had joined; on all ranks."""
        return self.joining and bool(self._ranks.of_first([self.recall.is_set()])[0])

    def is_draining(self) -> bool:
        """Whether the replica was asked to leave; on all ranks."""
        asked = self._ranks.first and self._hears_drain()
        return bool(self._ranks.of_first([asked])[0])

    def run_has_ended(self) -> bool:
        """Ask the control plane whether the run has ended; on all ranks."""

        def ended() -> bool:
            assert self._client is not None and self._pulse is not None
            if self._pulse.news.ended:
                return True
            try:
                return self._client.run(self._run).state in ENDED
            except SynclineError:
                return False

        return self._ranks.share(ended)

    def why_lost(self) -> str:
        """In the control plane's words, whoever of the two services spoke first; else empty."""

        def told() -> str | None:
            assert self._pulse is not None and self._client is not None
            return self._pulse.news.lost or self._pulse.refusal(self._client)

        return self._ranks.share(told) or ""

    def say_drained(self) -> None:
        """That this replica leaves, and who asked it to; rank 0's word."""
        if self._pulse is not None:
            self._log.info("replica.drained", why=self._why_drained())

    def _is_late_to_leave(self) -> bool:
        """Amid a wait: whether this replica was asked to leave so long ago that it does.

        The first time it is said, with what it waits for still.
        """
        if not self._hears_drain():
            return False
        if not self._has_said_draining:
            self._has_said_draining = True
            so = (
                "it waits for the round that it has pushed to, and for that of its last steps, at "
                f"most {self._round_deadline_s:g} s in all"
            )
            self._log.info("replica.drains", why=self._why_drained(), so=so)
        assert self._drains_since is not None
        return time.monotonic() - self._drains_since >= self._round_deadline_s

    def _hears_drain(self) -> bool:
        """Whether somebody has asked this replica to leave; on rank 0 only."""
        assert self._pulse is not None
        asked = self.recall.is_set() or self._pulse.news.drain
        if asked and self._drains_since is None:
            self._drains_since = time.monotonic()
        return asked

    def _why_drained(self) -> str:
        assert self._pulse is not None
        asker = OPERATOR if self._pulse.news.drain else self.recall.asker
        return f"{asker} asked it to leave"

    def hear_operator(self) -> None:
        """Where an operator has asked this replica to leave, let that be a recall.

        For waits in which there is no training to bring in. Before the replica has joined, the
        operator is heard later: what he wants to leave is a replica that trains.
        """
        if not self.joining and self._pulse is not None and self._pulse.news.drain:
            self.recall.set(OPERATOR)

    def finish_run(self) -> None:
        """Tell the control plane that the token budget is committed; any replica may."""
        if self._client is None:
            return
        try:
            self._client.finish_run(self._run)
        except SynclineError as error:
            self._log.warning("run.finish", why=error.message, so=UNHEARD)

    def _heard(self, version: int) -> Heard:
        assert self._pulse is not None
        news = self._pulse.news
        return Heard(
            drain=self._hears_drain(),
            paused=news.run_state is RunState.PAUSED,
            ended=news.ended,
            lost=news.lost is not None,
            new_settings=news.settings_version != version,
        )
