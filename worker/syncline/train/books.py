"""The books of one training: counts, means and times, and telling them to all who listen.

It decides nothing but when it is time to tell. Rank 0 tells; the others only count.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from syncline import Replica
from syncline.stats import Stats
from syncline.train.board import Board
from syncline.train.config import JobConfig
from syncline.train.estimate import Estimate
from syncline.train.evaluate import HeldOut, bits_if_counted
from syncline.train.progress import Ending, Listener, Snapshot, Start
from syncline.train.ranks import RankGroup
from syncline.train.step import StepReport

SUMMED = ("exposed_sync_s", "paused_s", "bytes_up", "bytes_down", "stale", "aged")
"""What the books have of all lives of a replica; the rest is of the one that is on."""


class Every:
    """Says when a count has grown by ``step`` since it last said so; never, for a step of 0."""

    def __init__(self, step: int, count: int) -> None:
        self._step = step
        self._last = count

    def due(self, count: int) -> bool:
        if not self._step or count - self._last < self._step:
            return False
        self._last = count
        return True


class Books:
    """What one replica has done so far."""

    def __init__(
        self,
        job: JobConfig,
        own: str,
        *,
        bytes_per_token: float,
        ranks: RankGroup,
        listener: Listener,
    ) -> None:
        self.inner_step = 0
        self._job = job
        self._bytes_per_token = bytes_per_token
        self._listener = listener
        self._board = Board(job, own) if ranks.first else None
        """Rank 0's."""
        self._own_tokens = 0
        self._own_tokens_told = 0
        self._losses: list[float] = []
        self._last: StepReport | None = None
        self._first: HeldOut | None = None
        self._held_out: HeldOut | None = None
        self._budget: int | None = None
        self._at_peak: float | None = None
        self._over: Stats | None = None
        """Of the lives before this one."""
        self._started = self._told = time.monotonic()
        self._paused_told_s = 0.0
        self._estimate: Estimate | None = None
        self._every = Every(job.log.every_steps, 0)

    def open(
        self,
        first: HeldOut,
        replica: Replica,
        *,
        parameters: int,
        run_tokens: int,
        budget: int | None,
        at_peak: float | None = None,
    ) -> None:
        """Training begins now, from a model of this held-out loss.

        ``at_peak`` is how many tokens a second its devices could do; None where nobody knows.
        """
        self._first = self._held_out = first
        self._at_peak = at_peak
        self._budget = budget
        self._estimate = Estimate(0.0, run_tokens, replica.settings.timeouts.round_deadline_s)
        self._started = self._told = time.monotonic()
        self._paused_told_s = self._of_all_lives(replica).paused_s
        self._every = Every(self._job.log.every_steps, self.inner_step)
        self._listener.start(
            Start(
                run=self._job.run.name,
                replica=replica.name if replica.active else None,
                parameters=parameters,
                tokens=run_tokens,
                tokens_total=budget,
                held_out_loss=first.loss,
                bits_per_byte=first.bits_per_byte,
            )
        )

    def note_life(self, replica: Replica) -> None:
        """A life of the replica is over; the next counts from 0, and the books go on."""
        self._over = self._of_all_lives(replica)

    def note(self, report: StepReport, tokens: int) -> None:
        """Count an inner step of the whole replica's ``tokens``; skipped ones count as none."""
        if not report.taken:
            return
        self.inner_step += 1
        self._own_tokens += tokens
        self._losses.append(report.loss)
        self._last = report

    def held_out(
        self, kind: Literal["held-out", "merged"], found: HeldOut, replica: Replica, tokens: int
    ) -> None:
        """Draw an evaluation into the run's curves."""
        self._held_out = found
        if self._board is not None:
            replica.add_point(kind, found.loss)
            self._board.held_out(kind, tokens, found.loss, found.bits_per_byte)

    def tell_if_due(self, replica: Replica, run_tokens: int) -> None:
        """Every few steps, tell the control plane, the listener and the board."""
        if self._last is None or not self._every.due(self.inner_step):
            return
        now = self._snapshot(self._last, replica, run_tokens)
        self._losses.clear()
        self._told, self._own_tokens_told = time.monotonic(), self._own_tokens
        self._paused_told_s = self._of_all_lives(replica).paused_s
        if self._board is not None:
            replica.report(
                loss=now.loss,
                grad_norm=now.grad_norm,
                lr=now.lr,
                tokens_per_second=now.tokens_per_second,
                mfu=now.mfu,
            )
            self._board.snapshot(now)
            self._listener.update(now)

    def ending(
        self,
        reason: Literal["budget", "stopped", "drained"],
        replica: Replica,
        *,
        tokens: int,
        local: HeldOut | None,
        merged: HeldOut | None,
        skipped: int,
        exported: Path | None,
    ) -> Ending:
        """The last record."""
        stats = self._of_all_lives(replica)
        seconds = time.monotonic() - self._started - stats.paused_s
        assert self._first is not None
        return Ending(
            reason=reason,
            bits_per_byte_start=self._first.bits_per_byte,
            held_out_local=local and local.loss,
            bits_per_byte_local=local and local.bits_per_byte,
            held_out_merged=merged and merged.loss,
            bits_per_byte_merged=merged and merged.bits_per_byte,
            tokens=tokens,
            own_tokens=self._own_tokens,
            seconds=seconds,
            tokens_per_second=self._own_tokens / seconds,
            exposed_sync_s=stats.exposed_sync_s,
            exposed_sync_share=stats.exposed_sync_s / seconds,
            bytes_up=stats.bytes_up,
            bytes_down=stats.bytes_down,
            rounds=stats.rounds,
            revision=replica.revision,
            inner_step=self.inner_step,
            skipped_steps=skipped,
            exported=None if exported is None else str(exported),
        )

    def close(self, ending: Ending | None) -> None:
        """No more will come; ``None`` when training did not end well."""
        self._listener.close(ending)
        if self._board is not None:
            self._board.close()

    def _snapshot(self, last: StepReport, replica: Replica, run_tokens: int) -> Snapshot:
        now = time.monotonic()
        loss = math.fsum(self._losses) / len(self._losses)
        held_out, stats = self._held_out, self._of_all_lives(replica)
        seconds = now - self._started - stats.paused_s
        since_told = now - self._told - (stats.paused_s - self._paused_told_s)
        speed = (self._own_tokens - self._own_tokens_told) / since_told
        return Snapshot(
            phase=str(replica.phase) if replica.active else "training",
            inner_step=self.inner_step,
            tokens=run_tokens,
            tokens_total=self._budget,
            loss=loss,
            bits_per_byte=bits_if_counted(loss, self._bytes_per_token),
            held_out_loss=held_out and held_out.loss,
            held_out_bits_per_byte=held_out and held_out.bits_per_byte,
            lr=last.lr,
            grad_norm=last.grad_norm,
            tokens_per_second=speed,
            mfu=speed / self._at_peak if self._at_peak else None,
            round=stats.rounds,
            revision=replica.revision,
            exposed_sync_s=stats.exposed_sync_s,
            exposed_sync_share=stats.exposed_sync_s / seconds,
            bytes_up=stats.bytes_up,
            bytes_down=stats.bytes_down,
            stale=stats.stale,
            aged=stats.aged,
            last_age=stats.last_age,
            seconds=seconds,
            eta_s=self._eta(run_tokens, seconds, stats.barren),
        )

    def _of_all_lives(self, replica: Replica) -> Stats:
        """What this life has cost and brought, with the sums of those that are over."""
        now, over = replica.stats, self._over
        if over is None:
            return now
        return replace(now, **{name: getattr(over, name) + getattr(now, name) for name in SUMMED})

    def _eta(self, run_tokens: int, seconds: float, barren: int) -> float | None:
        """Seconds to the budget; None where there is no saying, as while nobody's pushes count."""
        if self._budget is None or self._estimate is None:
            return None
        self._estimate.note(seconds, run_tokens)
        return None if barren else self._estimate.left_s(self._budget)
