"""One life of a replica: everything that it holds from joining a run to leaving it.

The composition root of the worker: it knows clock, network and model at once, builds the parts in
order, and lets go of them in order, in whatever state they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import structlog
from structlog.typing import FilteringBoundLogger
from torch import nn
from torch.optim import Optimizer

from syncline.anchors import Anchors
from syncline.averaged import Averaged
from syncline.boundary import Boundary
from syncline.buffers import Buffers
from syncline.carrier import Carrier
from syncline.control import ControlClient
from syncline.core.ramp import Ramp
from syncline.core.supply import Supply
from syncline.council import Council
from syncline.crowd import warn_if_crowded
from syncline.data.order import SequenceStream
from syncline.eager import Eager
from syncline.ending import RunEnd
from syncline.entry import Entry
from syncline.exchange import Exchange
from syncline.faults import INTERRUPTED, why_of
from syncline.fsdp import reshard_all
from syncline.heartbeat import Pulse
from syncline.helm import Helm
from syncline.hooks import Hooks
from syncline.join import Joined, found_run, open_run, register
from syncline.landing import Landing
from syncline.layout import ModelLayout, outline
from syncline.leased import Leased
from syncline.leases import Leases
from syncline.leaving import Leaving
from syncline.optim import WSAM
from syncline.push import Identity
from syncline.pushes import Pushes
from syncline.ranks import Ranks, check_together
from syncline.recall import Recall
from syncline.rehearsed import rehearse
from syncline.returning import may_return
from syncline.rounds import Rounds
from syncline.scratch import Scratch
from syncline.session import Session
from syncline.streamed import carrier_of
from syncline.synchronous import Synchronous
from syncline.tally import Tally
from syncline.tokens import Tokens
from syncline.traffic import Traffic
from syncline.verdicts import Verdicts
from syncline.voice import voice
from syncline.waiting import Waiting
from syncline.wish import Wish
from syncline_proto.errors import ConfigError, LeaseLost, SynclineError
from syncline_proto.leased import Dataset
from syncline_proto.rest import Progress, Registration
from syncline_proto.settings import RunSettings

log = structlog.get_logger()

TWO_GRADIENTS = (
    "WSAM takes two gradients a step, and warmup_steps averages one; create the run without "
    "warmup_steps, or train with another optimizer."
)


class Life:
    """From ``join`` to ``release``; a replica that starts again begins another."""

    def __init__(
        self,
        wish: Wish,
        progress: Callable[[], Progress],
        recall: Recall,
        ramp_steps: int | None,
        before: Life | None = None,
    ) -> None:
        """``progress`` is what heartbeats say; it is called on another thread.

        ``recall`` is set when somebody asks the replica to leave; ``ramp_steps`` is as ``Ramp`` has
        it. ``before`` is the life that this one follows: where that lost its lease the ranks talk
        on over what they talked over.
        """
        self.pulse: Pulse | None = None
        """Rank 0's heartbeat."""
        self.registration: Registration | None = None
        self._wish, self._progress, self._recall = wish, progress, recall
        self._ramp_steps = ramp_steps
        self._client: ControlClient | None = None
        self._tokens: Tokens | None = None
        self._leases: Leases | None = None
        self._leased: Leased | None = None
        self._exchange: Exchange | None = None
        self._hooks: Hooks | None = None
        self._ranks: Ranks | None = before._ranks if before and before._is_lost else None
        self._is_lost = False
        """It ended in ``LeaseLost``."""

    def join(self, model: nn.Module, optimizer: Optimizer) -> Session:
        """Find the run, take a lease in it and open it. The session is still to be started.

        Raises:
            SynclineError: as ``found_run``, ``register``, ``open_run`` and ``carrier_of`` do; the
                model cannot be described, the ranks have different ones, or the optimizer does not
                go with the run.
        """
        check_together()
        ranks = self._ranks = self._ranks or Ranks()
        reshard_all(model)
        outlined = outline(model, ranks)
        wish = self._wish
        if wish.settings is not None:  # it may be created with these
            _check_gradients(optimizer, wish.settings)
        run = found_run(wish, ranks, self._recall)
        _check_gradients(optimizer, run.settings)
        rehearse()
        described = outlined.cut(run.settings.blocks_per_fragment)
        carrier = carrier_of(described.shards, wish.anchor_device)
        fingerprint = described.layout.fingerprint()
        registration = register(wish, ranks, run.settings.timeouts, fingerprint, self._recall)
        self.registration = registration
        if ranks.first:
            # Its calls are small, and the last of them stands between Ctrl+C and the end.
            connect_s = registration.run.settings.timeouts.connect_s
            self._client = ControlClient(wish.control, wish.token, connect_s)
            self.pulse = self._heartbeat(registration)
        joined = open_run(wish, registration, ranks, described.layout, self._recall)
        exchange = self._exchange = _exchange(joined, described, ranks, carrier.scratch)
        say, me = voice(ranks.index), registration.replica
        page = f"{wish.control.partition(',')[0]}/#{wish.run}"
        say.info("replica.joined", run=wish.run, replica=me, ranks=ranks.count, page=page)
        if self._client is not None:
            warn_if_crowded(self._client, registration, ranks.count, model, say)
        return self._session(joined, exchange, model, optimizer, described, carrier, ranks)

    def release(self, failed: bool, error: BaseException | None = None) -> None:
        """End every thread and call, then give the lease back; each rank on its own.

        Why it failed goes into the run's log. What the ranks talk over stays as it is where they
        may have failed at different points. So it does after a lost lease, which all of them agreed
        on: they talk on about whether they ``may_return``, and as another life.

        Each part is let go of whatever became of those before it; a fault is raised at the end.
        """
        self._is_lost = isinstance(error, LeaseLost)
        with ExitStack() as first_in_last_out:
            after = first_in_last_out.callback
            if self._ranks is not None and not failed:
                after(self._ranks.close)
            if self._client is not None and self.registration is not None:
                after(self._client.close)
                why = why_of(error) if error else ""
                after(self._leave, self._client, self.registration, why)
            after(self._close_leases, self._is_lost)
            if self.pulse is not None:
                after(self.pulse.close, tell=not failed)
            if self._exchange is not None:
                after(self._exchange.close)
            if self._hooks is not None:
                after(self._hooks.remove)

    def may_return(self) -> bool:
        """After a lost lease, on all ranks: whether another life may begin.

        They talk as before, so a rank that is gone is noticed at once, and Ctrl+C is heard.

        Raises:
            ProcessFailed: another rank is gone, or did not come in time.
        """
        if self._ranks is None or self.registration is None:
            return False
        may = may_return(self._wish, self.registration, self._recall, self._ranks)
        if not may:  # all of them hear the same, and have nothing more to say
            self._ranks.close()
            self._ranks = None
        return may

    def lease(self, dataset: Dataset, batch: int, round_: int) -> Leased:
        """Read this dataset by leases, ``batch`` sequences at a time; on all ranks.

        ``round_`` is how many are read between two pushes. Once more it goes on with what nobody
        has read.

        Raises:
            ConfigError: it reads another already.
            DataError: the dataset is too small.
        """
        ranks, me, tokens = self._ranks, self.registration, self._tokens
        assert ranks is not None and me is not None and tokens is not None
        settings, size = me.run.settings, dataset.sequences
        replicas, connect_s = settings.replicas, settings.timeouts.connect_s
        supply = Supply.of(size, replicas, batch, round_, settings.sync_seconds)
        if self._leased is not None:
            if self._leased.dataset != dataset:
                raise ConfigError(
                    "A replica reads one leased dataset for as long as it is in its run, and has "
                    "begun with another: read that one, or begin another run."
                )
            self._leased.again()
            if self._leases is not None:
                self._leases.expect(supply)
            return self._leased
        own = SequenceStream(size, dataset.seed, me.ordinal % replicas, replicas)
        if ranks.first:
            client = ControlClient(self._wish.control, self._wish.token, connect_s)
            self._leases = Leases(client, me, dataset, supply)
        self._leased = Leased(
            ranks, tokens, self._leases, dataset, own, 2 * connect_s, voice(ranks.index)
        )
        return self._leased

    def _close_leases(self, is_lost: bool) -> None:
        if self._leases is not None and self._leased is not None:
            self._leases.close(None if is_lost else self._leased.unread)

    def _leave(self, client: ControlClient, me: Registration, why: str) -> None:
        try:
            client.leave(me.run.name, me.replica, me.incarnation, why)
            if why == INTERRUPTED:  # all else says what it is in its last line
                log.info("replica.left", why="interrupted", so="its lease is given back")
        except LeaseLost:
            pass  # there is no lease to give back
        except SynclineError as error:
            log.warning("replica.left", why=error.message, so="the lease will run out")

    def _heartbeat(self, registration: Registration) -> Pulse:
        # One lost answer must not cost the lease: a call ends well before it.
        client = ControlClient(self._wish.control, self._wish.token, registration.lease_s / 2)
        pulse = Pulse(client, registration, self._progress)
        pulse.start()
        return pulse

    def _session(
        self,
        joined: Joined,
        exchange: Exchange,
        model: nn.Module,
        optimizer: Optimizer,
        described: ModelLayout,
        carrier: Carrier,
        ranks: Ranks,
    ) -> Session:
        settings, say, tally = joined.settings, voice(ranks.index), Tally()
        copies = settings.codec.down == "int8"
        anchors = Anchors(described.shards, carrier, keeps_copies=copies)
        self._hooks = Hooks(model, described)
        helm = self._helm(joined, ranks, say)
        waiting = Waiting(Council(ranks, exchange, helm.order, self._recall, tally), helm)
        traffic = Traffic(ranks, exchange)
        tokens = self._tokens = Tokens(traffic)
        names = [fragment.name for fragment in described.layout.fragments]
        me, mix = joined.registration.replica, settings.overlap_mix
        rounds = Rounds(
            names=names,
            anchors=anchors,
            exchange=exchange,
            waiting=waiting,
            landing=Landing(anchors, self._hooks, tally, mix, me),
            optimizer=optimizer,
            settings=settings,
            tally=tally,
            tokens=tokens,
            verdicts=Verdicts(names, tally, say),
            eager=Eager(anchors, self._hooks, settings),
            log=say,
        )
        buffers = Buffers(model, ranks)
        pushes = Pushes(rounds, buffers, settings)
        entry = Entry(joined, ranks, anchors, exchange, helm, rounds, waiting, say)
        averaged, ramp = Averaged(model, ranks), Ramp(self._ramp_steps)
        synchronous = Synchronous(entry, averaged, buffers, rounds, pushes, optimizer, ramp, say)
        boundary = Boundary(
            version=joined.registration.run.settings_version,
            exchange=exchange,
            helm=helm,
            waiting=waiting,
            rounds=rounds,
            pushes=pushes,
            synchronous=synchronous,
            leaving=Leaving(rounds, pushes, settings.timeouts.round_deadline_s, say),
            run_end=RunEnd(rounds, exchange, helm, settings, say),
        )
        return Session(
            exchange=exchange,
            hooks=self._hooks,
            averaged=averaged,
            buffers=buffers,
            rounds=rounds,
            pushes=pushes,
            synchronous=synchronous,
            boundary=boundary,
            optimizer=optimizer,
            ranks=ranks,
            traffic=traffic,
            ramp=ramp,
            log=say,
        )

    def _helm(self, joined: Joined, ranks: Ranks, say: FilteringBoundLogger) -> Helm:
        return Helm(
            ranks,
            joined.registration.run.name,
            self._client,
            self.pulse,
            recall=self._recall,
            round_deadline_s=joined.settings.timeouts.round_deadline_s,
            log=say,
        )


def _exchange(joined: Joined, described: ModelLayout, ranks: Ranks, scratch: Scratch) -> Exchange:
    me = joined.registration
    identity = Identity(
        run=me.run.name,
        replica=me.replica,
        incarnation=me.incarnation,
        rank=ranks.index,
        ranks=ranks.count,
    )
    return Exchange(
        identity,
        described.layout,
        described.shards,
        joined.links,
        joined.epochs,
        joined.seqs,
        joined.settings.timeouts,
        scratch,
    )


def _check_gradients(optimizer: Optimizer, settings: RunSettings) -> None:
    """Refuse an optimizer that the run's synchronous phase cannot serve.

    Raises:
        ConfigError: the run averages a gradient of which the optimizer takes two.
    """
    if isinstance(optimizer, WSAM) and settings.warmup_steps:
        raise ConfigError(TWO_GRADIENTS)
