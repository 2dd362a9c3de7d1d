"""Training, as one would write it by hand around ``syncline.Replica``.

Read ``Trainer.run`` first. With a control plane the replica takes part in a run, and the token
budget is everyone's; without one the very same loop trains alone. Who starts the process, and
what becomes of an error, is ``__main__``'s business.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal

import structlog
import torch

from syncline import Replica
from syncline.metrics import serve
from syncline.recall import SIGNAL
from syncline.setbacks import Setbacks
from syncline.settings import Environment
from syncline.train.books import Books, Every
from syncline.train.config import JobConfig
from syncline.train.evaluate import Evaluator, HeldOut
from syncline.train.export import NONE_LACKING, export_state, full_state, portable
from syncline.train.exported import CHOOSE, Origin, check_free
from syncline.train.flops import tokens_at_peak
from syncline.train.inputs import Batch, Feed
from syncline.train.keeping import Keeping
from syncline.train.leasing import lease
from syncline.train.losses import loss_of
from syncline.train.made import check_made, made_model
from syncline.train.optim import build_optimizer
from syncline.train.progress import Ending, Listener
from syncline.train.ranks import RankGroup
from syncline.train.same import check_same_model
from syncline.train.schedules import Schedule
from syncline.train.sections import CheckpointSection, EvaluateSection
from syncline.train.sets import sets_of
from syncline.train.sharding import shard_model
from syncline.train.signals import Stop, heeding_sigterm
from syncline.train.sizes import check_budget, tokens_of_step
from syncline.train.step import WHAT_TO_DO, Gradients, InnerStep
from syncline.train.steps import ALONE
from syncline.train.writable import make_folders
from syncline_proto.errors import LeaseLost
from syncline_proto.settings import RunSettings

log = structlog.get_logger()


class Trainer:
    """One replica's training, from the first evaluation to the last.

    Invariants:
        - every rank runs the same evaluations, checkpoints and steps in the same order;
        - nothing is written outside of the folders that the job names.
    """

    def __init__(
        self,
        job: JobConfig,
        ranks: RankGroup,
        listener: Listener,
        *,
        replica: str | None = None,
        resume: bool = False,
    ) -> None:
        """Build everything that the job asks for; nothing is trained yet.

        Raises:
            ConfigError, FileMissing, DataError: the job cannot be built as it stands.
        """
        self.job, self.ranks = job, ranks
        make_folders(job)
        self._origin, env = Origin(run=job.run.name, alone=True), Environment()
        if job.export.folder is not None and not env.control:
            check_free(job.export.folder, CHOOSE, mine=self._origin)
        if job.train.threads is not None:
            torch.set_num_threads(job.train.threads)
        replicas = job.run.replicas if env.control else 1
        check_budget(job, ranks=ranks.count, replicas=replicas)
        check_made(job)
        self._sets = sets_of(job, ranks=ranks.count)
        self.model = made_model(job, self._sets.vocabulary)
        shard_model(self.model, ranks.mesh, job.train)
        loss = loss_of(self.model, job, self._sets.train, ranks)
        # Parameters were equal on all ranks; dropout must not be.
        torch.manual_seed(job.train.seed + ranks.index)
        self.optimizer = build_optimizer(self.model, job.optimizer)
        kept = portable(job, self.model)
        self.replica = Replica(
            self.model,
            self.optimizer,
            run=job.run.name,
            name=replica,
            settings=job.settings,
            job=kept.to_job(),
            check_job=partial(check_same_model, kept, self._sets.vocabulary),
            join_ramp_steps=job.optimizer.join_ramp_steps,
            anchor_device=job.train.anchor_device,
        )
        self._stop = Stop()
        self._setbacks = Setbacks(self.replica, WHAT_TO_DO)
        self._step = InnerStep(loss, self.optimizer, job.train, ranks, self._setbacks)
        self._evaluator = Evaluator(loss, self._sets, job, ranks)
        # Replicas on one machine, started from one job, must not write into one folder; a name
        # that is made of a process is another on each rank, and rank 0's is the replica's.
        self._own = ranks.word(self.replica.name) if self.replica.active else ALONE
        is_named = replica is not None or env.replica is not None or not self.replica.active
        self._keeping = Keeping(job, self._own, ranks, is_new=not resume, is_named=is_named)
        self._position = None
        if resume:
            active = self.replica.active
            self._position = self._keeping.resumed(self.model, self.optimizer, in_run=active)
        self._books = Books(
            job,
            self._own,
            bytes_per_token=self._sets.bytes_per_token,
            ranks=ranks,
            listener=listener,
        )

    @property
    def keeps_its_model(self) -> bool:
        """Whether anything is left of it: a run has it, who trains alone must write it."""
        folders = (self.job.export.folder, self.job.checkpoint.folder)
        return self.replica.active or any(folder is not None for folder in folders)

    @property
    def left_by_interrupt(self) -> str:
        """What Ctrl+C leaves of who trains alone, in words; of a run, the run has it."""
        if self.replica.active:
            return ""
        return self._keeping.left_by_interrupt(self._books.inner_step)

    def run(self) -> Ending:
        """Train until the budget is spent, the run ends, or somebody asks to leave.

        Raises:
            TrainingDiverged: the loss stays not finite.
            SynclineError: what Replica raises.
        """
        ending: Ending | None = None
        try:
            asked = partial(self.replica.request_drain, SIGNAL)
            with heeding_sigterm(self._stop, asked), self._served():
                self.ranks.meet()
                ending = self._trained()
            return ending
        finally:
            self._books.close(ending)

    def _trained(self) -> Ending:
        """Take part until the end; whose lease has run out meanwhile joins again, as a new life."""
        begin = self._begin
        while True:
            try:
                with self.replica:
                    begin()
                    begin = self._go_on
                    return self._train()
            except LeaseLost as lost:
                if not self.replica.may_return():
                    raise
                self._books.note_life(self.replica)
                if self.ranks.first:
                    so = "it joins the run again, from its newest revision"
                    log.warning("replica.returns", why=lost.message, so=so)

    def _train(self) -> Ending:
        while not self._over():
            report = self._step(
                self._next_batch, lr=self._lr, count=self._count, before_update=self._ready
            )
            if report.taken:
                self._tokens += self._step_tokens()
            self._books.note(report, self._step_tokens())
            if self.replica.last_round:
                self._settle()
            self._look_around()
        return self._end()

    def _go_on(self) -> None:
        """After joining again: what was read and learnt goes on, with the run's parameters."""
        self.optimizer.zero_grad()
        lease(self._feed, self.job, self._sets, self.replica, ranks=self.ranks.count)
        self._local = self._merged = None

    def _served(self) -> AbstractContextManager[None]:
        """Inside, Prometheus may ask, where the job names a port."""
        section = self.job.log
        if not section.metrics_port:
            return nullcontext()
        how = "--set log.metrics_port=PORT"
        return serve(self.replica, section.metrics_port, section.metrics_host, how)

    def _begin(self) -> None:
        """After joining: the parameters are the run's, so data, schedule and books follow it."""
        active = self.replica.active
        self.settings: RunSettings = self.replica.settings if active else self.job.settings
        self._replicas = self.settings.replicas if active else 1
        self._feed = Feed.open(
            self._sets.train,
            self.job.data,
            ordinal=self.replica.ordinal if active else 0,
            replicas=self._replicas,
            ranks=self.ranks,
        )
        self._tokens = 0
        if self._position is not None:
            self._keeping.place(self._feed, self._position.stream)
            self._tokens, self._books.inner_step = self._position.tokens, self._position.inner_step
        elif active:
            self._feed.skip_to(self.replica.committed_tokens // self._replicas)
        lease(self._feed, self.job, self._sets, self.replica, ranks=self.ranks.count)
        self._schedule = Schedule.of(self.job.optimizer, self.settings.token_budget)
        self._every_evaluation = self._every(self.job.evaluate)
        self._every_checkpoint = self._every(self.job.checkpoint)
        self._local: HeldOut | None = None
        self._merged: HeldOut | None = None
        first = self._evaluate("merged")
        self._books.open(
            first,
            self.replica,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            run_tokens=self._run_tokens(),
            budget=self.settings.token_budget,
            at_peak=tokens_at_peak(self.model, self.job, self.ranks),
        )

    def _next_batch(self) -> Batch:
        return self._feed.next(self.job.train.micro_batch)

    def _lr(self) -> float:
        """Of the step being taken: everyone is taken to do as much as this replica meanwhile."""
        scheduled = self._schedule.lr(self._run_tokens() + self._step_tokens() * self._replicas)
        return scheduled * self.replica.lr_factor

    def _count(self) -> None:
        """A push names the tokens of this step, and the synchronous phase weighs it by them."""
        self.replica.count_tokens(tokens_of_step(self.job.data, self.job.train))

    def _ready(self) -> Gradients:
        """Just before clipping: what is clipped is the mean.

        Where the run has ended during this step its last value stays as it is.
        """
        averaged = self.replica.synchronize()
        if self.replica.done:
            return Gradients.NONE
        return Gradients.REPLACED if averaged else Gradients.OWN

    def _over(self) -> bool:
        """Asked by all ranks before each step: whoever got the SIGTERM, all of them leave."""
        return self._is_complete() or self.ranks.sum([float(self._stop.asked)])[0] > 0

    def _is_complete(self) -> bool:
        """Equal on all ranks without a word."""
        return self.replica.done if self.replica.active else self._spent()

    def _look_around(self) -> None:
        """What happens now and then, between two steps; the end does it anyway."""
        self._books.tell_if_due(self.replica, self._run_tokens())
        if self._is_complete():
            return
        if self._every_evaluation.due(self._clock()):
            with self.replica.unsynced():
                self._evaluate("held-out")
        if self._every_checkpoint.due(self._clock()):
            self._save()

    def _settle(self) -> None:
        """Around the last round: evaluate the replica's own parameters, and what all end with."""
        with self.replica.unsynced():
            self._local = self._evaluate("held-out")
        self.replica.finish()
        if self._is_complete():
            self._merged = self._evaluate("merged")

    def _end(self) -> Ending:
        """Before leaving: the last evaluation, checkpoint and export."""
        spent = self._spent()
        if self._stopped() or (spent and self._merged is None):
            self.replica.finish()
            self._merged = self._evaluate("merged")
        self._save()
        exported = None
        if spent and not self.replica.active and self.job.export.folder is not None:
            exported = self.job.export.folder
            state = full_state(self.model)
            if self.ranks.first:
                export_state(
                    state, self.job, exported, frozen_sha256=NONE_LACKING, origin=self._origin
                )
        return self._books.ending(
            self._reason(spent),
            self.replica,
            tokens=self._run_tokens(),
            local=self._local,
            merged=self._merged,
            skipped=self._setbacks.count,
            exported=exported,
        )

    def _reason(self, spent: bool) -> Literal["budget", "stopped", "drained"]:
        if spent:
            return "budget"
        return "drained" if self._stop.asked or self.replica.drained else "stopped"

    def _stopped(self) -> bool:
        """Whether the run was ended before its budget; the replica then holds its last revision."""
        replica = self.replica
        ended = replica.active and replica.done and not (replica.drained or self._spent())
        return ended and replica.revision > 0

    def _spent(self) -> bool:
        """Whether it came to the end of the token budget (past that, a streaming run goes on)."""
        budget, replica = self.settings.token_budget, self.replica
        is_over = not replica.active or (replica.done and not replica.drained)
        tokens = replica.committed_tokens if replica.active else self._tokens
        return budget is not None and is_over and tokens >= budget

    def _evaluate(self, kind: Literal["held-out", "merged"]) -> HeldOut:
        held_out = self._evaluator()
        self._books.held_out(kind, held_out, self.replica, self._run_tokens())
        return held_out

    def _save(self) -> None:
        self._keeping.save(
            self.model,
            self.optimizer,
            inner_step=self._books.inner_step,
            tokens=self._run_tokens(),
            stream=self._feed.state_dict(),
        )

    def _every(self, section: EvaluateSection | CheckpointSection) -> Every:
        """Rounds pace a replica of a run, and steps one that trains alone."""
        step = section.every_rounds if self.replica.active else section.every_steps
        return Every(step, self._clock())

    def _clock(self) -> int:
        return self.replica.revision if self.replica.active else self._books.inner_step

    def _run_tokens(self) -> int:
        return self.replica.run_tokens if self.replica.active else self._tokens

    def _step_tokens(self) -> int:
        """Of the whole replica."""
        return tokens_of_step(self.job.data, self.job.train) * self.ranks.count
