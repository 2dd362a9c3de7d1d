"""A replica in the loop of somebody else, who says when training begins, steps and ends.

What the callbacks have in common; knows none of their libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, SupportsIndex

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from syncline.care import ramped
from syncline.drained import drained_on_sigterm, is_free
from syncline.integrations.apart import begin_apart
from syncline.metrics import LOOPBACK, serve
from syncline.norms import whole_norm
from syncline.optim.followed import followed
from syncline.replica import Replica
from syncline.settings import AnchorDevice
from syncline.voice import own_rank, voice
from syncline_proto.settings import RunSettings


class Guest:
    """From ``begin`` to ``end`` a replica; a training that comes after is a new life of it."""

    def __init__(
        self,
        *,
        run: str | None,
        name: str | None,
        settings: RunSettings | dict[str, Any] | None,
        control: str | None,
        tokens_of: Callable[[Any], SupportsIndex] | None,
        join_ramp_steps: int | None,
        anchor_device: AnchorDevice | None,
        metrics_port: int | None,
        metrics_host: str,
    ) -> None:
        """As ``Replica``; Prometheus may ask it at ``metrics_port``, if that is given."""
        self._metrics = metrics_port, metrics_host
        self._open = ExitStack()
        """What is to be ended with the training."""
        self._how: dict[str, Any] = {
            "run": run,
            "name": name,
            "settings": settings,
            "control": control,
            "tokens_of": tokens_of,
            "join_ramp_steps": join_ramp_steps,
            "anchor_device": anchor_device,
        }
        self._optimizer: Optimizer | None = None
        self._end_ramp: Callable[[], None] = lambda: None
        self._end_heeding: Callable[[], None] = lambda: None
        self._loss: float | Tensor = 0.0
        """Of the batches since the last step, added up."""
        self.replica: Replica | None = None
        """The one that is in training now, or was last."""
        self.is_live = False

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        check: Callable[[], None],
        *,
        may_heed: bool | None = None,
    ) -> Replica:
        """Join the run. ``check`` is called before that, if there is a run to take part in.

        From there to the end SIGTERM drains the replica, if ``may_heed`` (None: if nobody else has
        set a handler).

        Raises:
            SynclineError: as ``Replica.start``, and what ``check`` raises.
        """
        self.replica = replica = Replica(model, optimizer, **self._how)
        if replica.active:
            check()
            if is_free() if may_heed is None else may_heed:
                self._end_heeding = drained_on_sigterm(replica)
        try:
            self._serve(replica)  # a port that is taken ends it before it joins
            replica.start()
        except BaseException:
            self._open.close()
            self._end_heeding()
            raise
        replica.bear_loss()
        self._optimizer = followed(optimizer)
        self._ramp()
        self.is_live, self._loss = True, 0.0
        return replica

    def part_data(self, loader: Any) -> bool:
        """Let the loader begin where no other replica does, or say that it cannot; whether it does.

        Its next pass does: one that is under way is of before.
        """
        replica = self.replica
        assert replica is not None
        count = replica.settings.replicas if replica.active else 1
        if count == 1:
            return False
        moved = begin_apart(loader, replica.ordinal % count, count)
        if not moved:
            why = "the training data has no order that is known beforehand"
            so = "every replica reads all of it from the start; give each a part of its own"
            voice(own_rank()).warning("data.shared", why=why, so=so)
        return moved

    def see_loss(self, loss: Any) -> None:
        """Of a batch whose backward pass is to come; one that is not finite spoils its step."""
        if isinstance(loss, Tensor):
            self._loss = self._loss + loss.detach().sum()

    def judge(self) -> None:
        """Before an update: let it change nothing if its loss or its gradient is not finite.

        Raises:
            TrainingDiverged: it was one too many.
        """
        loss, self._loss = self._loss, 0.0
        assert self.replica is not None
        self.replica.skips(loss)

    def gradient_norm(self) -> float:
        """Of the step that comes, as its gradients are now; on a GPU it waits. Collective."""
        assert self._optimizer is not None
        groups = self._optimizer.param_groups
        gradients = (parameter.grad for group in groups for parameter in group["params"])
        return whole_norm(gradient for gradient in gradients if gradient is not None)

    def has_ended(self) -> bool:
        """Between two steps: merge the last round, if it is that; whether training is over.

        Whose lease has run out joins the run again here.

        Raises:
            SynclineError: as ``Replica.rejoin`` and ``finish``.
        """
        replica = self.replica
        assert replica is not None
        if replica.rejoin():
            self._end_ramp()
            self._ramp()  # after the hooks of the new life, which know its factor
        if replica.last_round:
            replica.finish()
        return replica.done

    def end(self, *, failed: bool = False, error: BaseException | None = None) -> None:
        """Leave the run, if that was not done; ``failed``: without a last push."""
        if self.replica is None or not self.is_live:
            return
        self.is_live = False
        self._end_ramp()
        try:
            self._leave(failed, error)
        finally:
            self._open.close()
            self._end_heeding()

    def _serve(self, replica: Replica) -> None:
        port, host = self._metrics
        if port is not None:
            self._open.enter_context(serve(replica, port, host, "metrics_port="))

    def _ramp(self) -> None:
        replica, optimizer = self.replica, self._optimizer
        assert replica is not None and optimizer is not None
        self._end_ramp = ramped(optimizer, lambda: replica.lr_factor)

    def _leave(self, failed: bool, error: BaseException | None) -> None:
        assert self.replica is not None
        if error is not None:
            self.replica.__exit__(type(error), error, None)
        else:
            self.replica.close(failed)


def figures(replica: Replica) -> dict[str, float]:
    """What a library's log should have of synchronisation; named as the trainer's boards do."""
    stats = replica.stats
    named = {
        "sync/revision": replica.revision,
        "sync/exposed_seconds": stats.exposed_sync_s,
        "sync/bytes_up": stats.bytes_up,
        "sync/bytes_down": stats.bytes_down,
        "sync/stale_pushes": stats.stale,
        "sync/aged_pushes": stats.aged,
        "sync/last_age": stats.last_age,
    }
    pace = replica.tokens_per_second
    return {
        **{name: float(value) for name, value in named.items()},
        **({} if pace is None else {"speed/tokens_per_second": pace}),
    }


class GuestCallback:
    """What the libraries' callbacks have of us in common: how they are made, and their replica."""

    def __init__(
        self,
        *,
        run: str | None = None,
        name: str | None = None,
        settings: RunSettings | dict[str, Any] | None = None,
        control: str | None = None,
        tokens_of: Callable[[Any], SupportsIndex] | None = None,
        join_ramp_steps: int | None = None,
        anchor_device: AnchorDevice | None = None,
        metrics_port: int | None = None,
        metrics_host: str = LOOPBACK,
    ) -> None:
        """As ``Replica``; what ``tokens_of`` is given, the callback says.

        With a ``metrics_port`` Prometheus finds the replica's ``/metrics`` there while it trains;
        each replica of a machine needs its own.
        """
        self._guest = Guest(
            run=run,
            name=name,
            settings=settings,
            control=control,
            tokens_of=tokens_of,
            join_ramp_steps=join_ramp_steps,
            anchor_device=anchor_device,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
        )
        self._hooks: list[RemovableHandle] = []
        """In the loop of the library while a training is under way."""

    @property
    def replica(self) -> Replica | None:
        """The replica that is in training, or was last."""
        return self._guest.replica

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
