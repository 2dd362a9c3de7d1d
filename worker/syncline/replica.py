"""``Replica``: the few lines that put Syncline into a training loop of one's own.

    with syncline.Replica(model, optimizer, run="my-run") as replica:
        for batch in replica.shard(loader):
            loss = model(**batch).loss
            loss.backward(); optimizer.step(); optimizer.zero_grad()

The public face of the worker: says what a loop may ask and do. What happens is in ``session``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, SupportsIndex

from torch import Tensor, nn
from torch.optim import Optimizer

from syncline.alone import Alone
from syncline.batches import Untaken
from syncline.care import Care
from syncline.drained import drained_on_sigterm, is_free
from syncline.faults import plainly
from syncline.fitting import Claim, check_trains, checked_model, left_out
from syncline.life import Life
from syncline.optim.followed import followed
from syncline.reading import Reading
from syncline.recall import OWN, Recall
from syncline.reports import Curve, Reports
from syncline.session import Session
from syncline.setbacks import Setbacks, figures_of
from syncline.settings import AnchorDevice, checked_ramp, run_settings
from syncline.stats import number_of, progress_of
from syncline.synchronous import drop_gradients
from syncline.voice import own_rank, voice
from syncline.wish import CheckJob, Wish, wished
from syncline_proto.errors import ConfigError
from syncline_proto.rest import Progress
from syncline_proto.settings import RunSettings


class Replica(Reading):
    """One copy of the model in training, as a member of a run.

    It follows exactly one optimizer, which holds everything that is trained and whose ``step``
    takes no closure. Accelerate may have prepared it, and the model.

    Without a control plane (neither ``control`` nor SYNCLINE_CONTROL) it is inactive: it says so
    once, counts steps and tokens, and is done at the token budget: the same script runs alone. What
    a loop asks of an active replica that was not started is a ConfigError.

    With several ranks (FSDP2 under ``torchrun``) every rank makes one, after
    ``init_process_group`` and ``fully_shard``, and uses it in step with the others.
    Ranks that share matrices by tensor parallelism train on the same batch: one of them counts its
    tokens, and none takes its batches from ``shard``, which gives each rank others.
    """

    @plainly
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        run: str | None = None,
        name: str | None = None,
        settings: RunSettings | dict[str, Any] | None = None,
        job: dict[str, Any] | None = None,
        check_job: CheckJob = lambda run, job: None,
        control: str | None = None,
        tokens_of: Callable[[Any], SupportsIndex] | None = None,
        join_ramp_steps: int | None = None,
        drain_on_sigterm: bool = True,
        takes_care: bool = False,
        anchor_device: AnchorDevice | None = None,
    ) -> None:
        """Say what to take part in; nothing happens before ``start`` or ``with``.

        Args:
            run: the run's name, else SYNCLINE_RUN, else "default".
            name: this replica's, else SYNCLINE_REPLICA, else made of machine and process. A name
                that comes back takes over from its older life.
            settings: the run's, if it is to be created; a run that exists must have the same,
                but for what may change while it goes on. None adopts what is there.
            job: kept with the run, for export and for people.
            check_job: called with the run's name and the job that it keeps, before this replica
                joins it; may raise a ``SynclineError`` where that is another.
            control: address of the control plane (of several processes: theirs, with commas
                between), else SYNCLINE_CONTROL.
            tokens_of: counts a batch's tokens, where ``input_ids`` or its first integer tensor
                is not the measure.
            join_ramp_steps: over so many first steps ``lr_factor`` grows to 1 where this replica
                joins a run that is under way and its optimizer has no state; None: a tenth of
                ``sync_every``.
            drain_on_sigterm: inside ``with``, of a replica that takes part in a run, SIGTERM is a
                ``request_drain`` (a second one means what it did before), where the script has no
                handler of its own.
            takes_care: do what the callbacks of libraries do: shorten a joiner's first steps (leave
                ``lr_factor`` alone then), leave out steps whose gradient is not finite, or whose
                loss where the model's forward gives it (on a GPU each waits for its backward
                pass), and where a lease has run out join again, in ``shard`` and ``leased``,
                between two steps.
            anchor_device: where its anchors lie: in the memory of the "cpu" or of the "model"'s own
                device; else SYNCLINE_ANCHOR_DEVICE, else "cpu".

        Raises:
            ConfigError: a setting, name or address is wrong.
        """
        self._ramp_steps = checked_ramp(join_ramp_steps)
        self._model, self._optimizer = checked_model(model), followed(optimizer)
        given = None if settings is None else run_settings(settings)
        self._recall = Recall()
        self._alone = Alone(given or RunSettings(), model, self._optimizer, self._recall)
        wish = wished(control, run, name, given, job or {}, check_job, anchor_device)
        super().__init__(wish, self._alone, tokens_of)
        self._setbacks = Setbacks(self)
        self._claim, self._care = Claim(model), Care(model, self._optimizer, takes_care)
        self._drains_on_sigterm = drain_on_sigterm
        self._end_heeding: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        if self._drains_on_sigterm and self.active and is_free():
            self._end_heeding = drained_on_sigterm(self)
        try:
            self.start()
        except BaseException:
            self._end_heeding()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        try:
            self._close(failed=kind is not None, error=error)
        finally:
            self._end_heeding()

    @plainly
    def report(
        self,
        *,
        loss: float | Tensor | None = None,
        grad_norm: float | Tensor | None = None,
        lr: float | None = None,
        tokens_per_second: float | None = None,
        mfu: float | None = None,
    ) -> None:
        """Give what goes with the next heartbeat; a loss also becomes a point of its curve.

        ``mfu`` (model flops a second, as a share of the devices' peak) is for ``syncline.metrics``
        alone. What is not finite is left out; of a loss the log says so, ever more seldom. A GPU is
        not waited for: what it still computes is told once it has.

        Raises:
            ConfigError: one is no number.
        """
        given = {
            "loss": loss,
            "grad_norm": grad_norm,
            "inner_lr": lr,
            "tokens_per_second": tokens_per_second,
            "mfu": mfu,
        }
        self._reports.add(given, self._now)

    @plainly
    def add_point(self, kind: Curve, loss: float | Tensor) -> None:
        """Add a point to this replica's loss curves (nats per token); rank 0's counts."""
        self._reports.add_point(kind, number_of(loss, "loss"), self._now)

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """Inside, a forward pass uses this replica's own parameters; nothing is merged."""
        session = self._session
        before, session.unsynced = session.unsynced, True
        try:
            yield
        finally:
            session.unsynced = before

    @plainly
    def synchronize(self) -> bool:
        """Wait for what is pending, and in the synchronous phase average the gradients now.

        For loops that clip or look at gradients: call it after the backward pass (and
        ``count_tokens``), so that what is clipped is the mean. Without it ``optimizer.step()``
        does the same, later; a second call within a step does nothing. Returns whether the
        gradients are others now.
        """
        self._check_live()
        return self._session.synchronize()

    @plainly
    def skips(
        self, loss: float | Tensor | None = None, grad_norm: float | Tensor | None = None
    ) -> bool:
        """Whether to leave this step out, as its loss or its gradient is not finite.

        Ask after the backward pass, before ``synchronize`` and all else that looks at gradients,
        and where it is so go on with the next batch: the gradients are gone, nothing of the step
        counts, and ``optimizer.step()`` would change nothing. Three in a row take the run's newest
        revision, as ``go_back`` does. A ``GradScaler`` skips by itself, and makes infinite
        gradients on purpose: ask nothing where there is one. With several ranks all of them ask;
        one is enough to skip. On a GPU it waits for the backward pass.

        ``grad_norm``: where the loop knows it; else it is computed here.

        Raises:
            TrainingDiverged: it was one too many.
            ConfigError: one is no number.
        """
        self._check_live()
        self._care.forget()
        figures = figures_of(self._optimizer, loss, grad_norm)
        is_odd = not all(map(math.isfinite, figures.values()))
        skips = self._session.skip(is_odd)
        if skips:
            where = {} if is_odd else {"where": "on another rank"}
            self._setbacks.skipped(voice(own_rank()), **figures, **where)
        else:
            self._setbacks.none()
        return skips

    def before_write(self) -> None:
        """Say that the loop itself, not its optimizer, is about to write parameters.

        For loops that clip weights, swap in averaged ones or load them between two steps: on a GPU
        what was pushed is being copied out still. It waits on the device, not here.
        """
        self._session.before_write()

    @plainly
    def finish(self) -> None:
        """Wait for everything that was pushed, and merge it."""
        self._check_live()
        self._session.finish()

    @plainly
    def go_back(self) -> bool:
        """Take the run's newest revision, for a model that has gone wrong; between two steps.

        Steps that are not pushed yet are forgotten, and what the optimizer remembers. Returns
        whether it was done: not in the synchronous phase, at the end, or without a run. With
        several ranks all of them call it.
        """
        self._check_live()
        return self._session.go_back()

    def request_drain(self, asker: str = OWN) -> None:
        """Ask to leave the run after the current inner step: push what was done, then be done.

        Before it has joined, ``start`` ends with CalledOff instead. May be called from a signal
        handler. Of several ranks one is enough, amid a wait, too: all leave. The log says that
        ``asker`` asked.
        """
        self._recall.set(asker)

    def may_return(self) -> bool:
        """After LeaseLost: whether the lease had run out, so that this replica may start again.

        It does so as a new life, from the run's newest revision; steps that were not pushed are
        lost. False where it was asked to leave, an operator removed it, another process has joined
        under its name, or the control plane does not answer. All ranks ask, and hear the same.

        Raises:
            ProcessFailed: another rank is gone, or did not come in time.
        """
        return self._life is not None and self._life.may_return()

    def bear_loss(self) -> None:
        """Let hooks bear a lost lease from now on: steps change nothing until ``rejoin``.

        For loops in which an exception of a hook would end all, as those of libraries.
        """
        self._check_live()
        self._session.bears_loss = True

    @plainly
    def rejoin(self) -> bool:
        """Between two steps: where a lost lease was borne, join the run again; whether it was.

        As a new life, from the run's newest revision; what the optimizer remembers goes on, and
        steps that were not pushed are lost. All ranks call it.

        Raises:
            LeaseLost: it may not return (see ``may_return``).
            SynclineError: as ``start``.
        """
        session = self._session
        if not isinstance(session, Session) or session.lost is None:
            return False
        self._close(failed=True, error=session.lost)
        if not self.may_return():
            raise session.lost
        so = "it joins the run again, from its newest revision"
        voice(own_rank()).warning("replica.returns", why=session.lost.message, so=so)
        self.start()
        self.bear_loss()
        return True

    @plainly
    def start(self) -> None:
        """Join the run: returns with the run's parameters in the model and hooks in the loop.

        Of those no code knows that torch.compile has made before: all of it is compiled anew.

        Raises:
            Unreachable: control plane or sync service do not answer.
            RunConflict: the run has other settings, or has ended.
            LayoutMismatch: the run trains another model.
            ConfigError: it or another around the model was started already, the model or the
                optimizer is none to train here, or what answers is no control plane.
            CalledOff: it was asked to leave meanwhile.

        Where it fails with several ranks, end the process: what they talk over is left as it is,
        and ranks that failed at different points would not meet again.
        """
        if self._stage == "live":
            raise ConfigError("The replica was started already; close it before it starts again.")
        check_trains(self._model, self._optimizer)
        if names := left_out(self._model, self._optimizer):
            so = "freeze what is not to be trained, or give the optimizer what is"
            voice(own_rank()).warning("optimizer.lacks", count=len(names), first=names[0], so=so)
        self._claim.take()
        try:
            self._care.begin(self)
            if self._wish is None:
                self._alone.start()
            else:
                self._join(self._wish)
        except BaseException:
            self._care.end()
            self._claim.give_back()
            raise
        self._stage, self._untaken = "live", Untaken()
        self._care.follow(self)

    def _join(self, wish: Wish) -> None:
        # What an older life has counted is not this one's, whose heartbeat begins before it.
        self._session, self._reports = self._alone, Reports()
        before, ramp_steps = self._life, self._ramp_steps
        life = self._life = Life(wish, self._progress, self._recall, ramp_steps, before)
        try:
            self._session = session = life.join(self._model, self._optimizer)
            if life.pulse is not None:
                self._reports.points = life.pulse.add
            session.start()
        except BaseException as error:
            life.release(failed=True, error=error)
            raise

    def close(self, failed: bool = False) -> None:
        """Leave the run: bring in the last steps (unless ``failed``), then give the lease back.

        Nothing happens where it was not started, or is closed. One that had been asked to leave may
        start again.
        """
        self._close(failed)

    @plainly
    def _close(self, failed: bool, error: BaseException | None = None) -> None:
        if self._stage != "live":
            return
        self._stage = "closed"
        self._care.end()
        self._claim.give_back()
        if not (failed or self.done):
            self._untaken.tell(self._session.tally, voice(own_rank()))
        if self._life is None:
            self._alone.close(failed)
        else:
            self._leave(self._life, failed, error)
        if not failed:
            self._recall.forget()

    def _leave(self, life: Life, failed: bool, error: BaseException | None) -> None:
        try:
            if not failed:
                self._reports.finish()
                self._session.leave()
        except BaseException as raised:
            failed, error = True, raised
            raise
        finally:
            life.release(failed, error)

    def _returns(self) -> bool:
        if not (self._care.is_on and self.rejoin()):
            return False
        drop_gradients(self._optimizer)  # of batches of the life before
        return True

    def _progress(self) -> Progress:
        """What the next heartbeat says; called on the heartbeat's thread."""
        return progress_of(self._session, self.reported)
