"""A fragment's pulls: of what a round leaves, of what is there, of what a run begins with.

Knows what is asked for where that is gone, and how long it is waited for; nothing of pushes.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from syncline.change import Change, is_long
from syncline.core.agreement import Answer
from syncline.layout import RankShard
from syncline.patience import PASSING, Pauses, RoundPatience
from syncline.pulled import Held, Pulled
from syncline.push import Identity, Outcome, Wanted, request_of
from syncline.scratch import Scratch
from syncline.services import Services
from syncline.stalled import Stalled
from syncline_proto.codec import Follower
from syncline_proto.errors import EpochChanged, RevisionGone
from syncline_proto.layout import Layout
from syncline_proto.settings import TimeoutSettings
from syncline_proto.spans import Spans, spans

AGAIN_S = 0.5
"""Before a push or pull that the service broke off comes again."""

KNOWN_BYTES_MAX = 64 << 10
"""Of a fragment's spans: most shards have few of them, and are looked for once."""


class Puller:
    """This rank's. Any thread may call it."""

    def __init__(
        self,
        identity: Identity,
        layout: Layout,
        shards: tuple[RankShard, ...],
        services: Services,
        timeouts: TimeoutSettings,
        scratch: Scratch,
        pauses: Pauses,
        stop: threading.Event,
    ) -> None:
        """What is pulled is from ``scratch``; once ``stop`` is set nothing is waited for."""
        self._identity, self._layout, self._shards = identity, layout, shards
        self._services, self._timeouts, self._scratch = services, timeouts, scratch
        self._pauses, self._stop = pauses, stop
        self._boxes = [[box.to_proto() for box in shard.boxes] for shard in shards]
        self._known: dict[int, Spans] = {}

    def name(self, fragment: int) -> str:
        return self._layout.fragments[fragment].name

    def pull(self, fragment: int, wanted: Wanted, held: Held | None = None) -> Pulled:
        """Ask once, and wait as long as the call lasts; a difference goes onto what is ``held``.

        Raises:
            Stalled: what is wanted is not published yet.
            RevisionGone: it is no longer kept.
            EpochChanged: it is of an epoch that has ended.
            SynclineError: the call has failed.
        """
        shard = self._shards[fragment]
        # No boxes would mean the whole fragment; a rank with an empty shard wants none of it.
        wanted = replace(wanted, values=wanted.values and bool(shard.pieces))
        boxes, name = self._boxes[fragment], held.name if held and wanted.values else ""
        epoch = self._services.epoch(fragment)
        request = request_of(wanted, self._identity, fragment, epoch, boxes, name)
        follower, change = None, None
        if held is not None and name:
            where = self._where(fragment)
            follower = Follower(held.bits, where)
            if held.tensors is not None and is_long(shard.numel, len(where) + held.tensors):
                change = Change(held.bits, where)
        link = self._services.link(fragment)
        elements = shard.numel if wanted.values else None
        return link.pull(request, elements, self._scratch, follower, change)

    def kept(self, fragment: int, wanted: Wanted) -> Outcome:
        """Pull it, also from a service that is away for a while; the newest, where it is gone.

        Raises:
            Unreachable: it is away for ``give_up_s``, or what is newest goes too fast.
            SynclineError: it refuses.
        """
        services, patience = self._services, self.patience()
        while True:
            epoch = services.epoch(fragment)
            try:
                pulled = services.keep_asking(
                    fragment, lambda wanted=wanted: self.pull(fragment, wanted)
                )
                return Outcome(answer=Answer.MERGED, pulled=pulled)
            except RevisionGone:
                wanted = self.newest_instead(fragment, wanted, patience)
            except EpochChanged:
                services.learn_epoch(fragment, epoch, 0)
                wanted = self.newest_instead(fragment, wanted, patience)

    def first(self, fragment: int, phase: int) -> Outcome:
        """Wait for revision 1; GONE if the synchronous phase, now ``phase``, started again.

        Raises:
            Unreachable: its service is away for ``give_up_s``, or the phase has made no step for as
                long as a round is waited for.
            SynclineError: it refuses.
        """
        services, patience = self._services, self.patience()
        wanted, step = Wanted(revision=1, phase=phase), 0
        while True:
            epoch = services.epoch(fragment)
            try:
                return Outcome(answer=Answer.MERGED, pulled=self.pull(fragment, wanted))
            except EpochChanged:
                services.learn_epoch(fragment, epoch, 0)
                patience.check(self.name(fragment))
            except (RevisionGone, Stalled, *PASSING) as error:
                state = services.state(fragment)
                if state.revision:
                    wanted = self.newest_instead(fragment, wanted, patience)
                    continue
                if state.gradient_step == 0:
                    return Outcome(answer=Answer.GONE)
                wanted = Wanted(revision=1, phase=state.phase)
                if state.gradient_step != step:
                    step = state.gradient_step
                    patience.start_again()
                patience.check(self.name(fragment))
                if not isinstance(error, RevisionGone):
                    self._stop.wait(AGAIN_S)

    def newest_instead(self, fragment: int, gone: Wanted, patience: RoundPatience) -> Wanted:
        """What to pull where that is gone; the newest, too, may go while it is on its way."""
        patience.check_fetching(self.name(fragment))
        if gone == Wanted():
            self._stop.wait(AGAIN_S)
        return Wanted()

    def patience(self) -> RoundPatience:
        """For a round that is waited for from now on."""
        return RoundPatience(self._timeouts, lambda: self._pauses.seconds)

    def _where(self, fragment: int) -> Spans:
        """This rank's shard in the fragment's flat vector."""
        found = self._known.get(fragment)
        if found is None:
            found = spans(self._layout, fragment, self._shards[fragment].boxes)
            if found.nbytes <= KNOWN_BYTES_MAX:
                self._known[fragment] = found
        return found
