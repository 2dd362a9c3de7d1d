"""Rank 0's stock of leased sequences, kept up ahead of the reading by a thread of its own.

A control plane that is away is asked again for as long as it takes; nobody waits for it longer than
for two connections. Decides neither what is read next, nor what becomes of it.
"""

from __future__ import annotations

import random
import threading
import time

import structlog

from syncline.control import ControlClient
from syncline.core.supply import Supply
from syncline.heartbeat import REFUSALS
from syncline.outage import Outage
from syncline_proto.errors import DataMismatch, InvalidRequest, Overloaded, SynclineError
from syncline_proto.leased import WANT_MAX, DataAsk, Dataset
from syncline_proto.ranges import NOTHING, RANGES_MAX, Ranges, count, joined
from syncline_proto.rest import Registration

RETRY_S = 1.0
"""Between two calls where the first was not answered, or had none: by half of it more or less, so
that replicas whom one outage has stopped do not ask in step."""

CLOSE_S = 5.0
"""How long a call on its way is waited for when the replica leaves."""

FATAL = (DataMismatch, InvalidRequest)
"""Answers that no patience changes; who reads is told."""

log = structlog.get_logger()


class Leases:
    """The leased sequences that are nobody's yet in this replica.

    Invariant: what is asked for is in the stock, taken, or given back.
    """

    def __init__(
        self, client: ControlClient, me: Registration, dataset: Dataset, supply: Supply
    ) -> None:
        """``client`` is this thread's own, from here on."""
        self._client, self._me, self._dataset, self._supply = client, me, dataset, supply
        self._changed = threading.Condition()
        self._stock: Ranges = NOTHING
        self._after = 0
        self._taken, self._began = 0, time.monotonic()
        self._error: Exception | None = None
        self._is_over = False
        self._is_dry = False
        """The last answer had none: it holds all that it may until some is done."""
        so = "training goes on with the data that is leased"
        self._outage = Outage("data", so, lambda: client.url)
        self._thread = threading.Thread(target=self._keep_up, name="syncline-data", daemon=True)
        self._thread.start()

    def expect(self, supply: Supply) -> None:
        """Keep so much ahead from now on."""
        with self._changed:
            self._supply = supply
            self._changed.notify_all()

    def take(self, least: int, wait_s: float) -> Ranges:
        """Take all there is; waits until that is ``least``, if more may come, or ``wait_s``.

        Raises:
            DataMismatch: the run's data is another.
            InvalidRequest: the control plane knows of no leased data.
            Exception: a fault has ended the thread that keeps it up.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._may_go_on(least), wait_s)
            if self._error is not None:
                raise self._error
            taken, self._stock = self._stock, NOTHING
            self._taken += count(taken)
            self._changed.notify_all()
        return taken

    def close(self, unread: Ranges | None) -> None:
        """End the thread, and give back what nobody has read; None: there is no lease any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)
        try:
            if unread is not None and not (self._outage.is_on or self._thread.is_alive()):
                self._give_back(joined(unread, self._stock))
        finally:
            self._client.close()

    def _may_go_on(self, least: int) -> bool:
        is_there = count(self._stock) >= least
        comes_none = self._is_over or self._error is not None or self._outage.is_on or self._is_dry
        return is_there or comes_none

    def _lacking(self) -> int:
        seconds = max(time.monotonic() - self._began, 1.0)
        lacking = self._supply.lacking(count(self._stock), self._taken / seconds)
        return min(lacking, WANT_MAX)

    def _keep_up(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._lacking() > 0)
                if self._is_over:
                    return
                lacking = self._lacking()
            try:
                self._ask(lacking)
                if self._is_dry:
                    self._pause()
            except FATAL as error:
                self._end(error)
                return
            except REFUSALS:
                self._end(None)  # what that means is the heartbeat's to say
                return
            except SynclineError as error:
                with self._changed:
                    if isinstance(error, Overloaded):  # who asks for patience is there
                        self._outage.answered()
                    else:
                        self._outage.missed(error)
                    self._changed.notify_all()
                self._pause()
            except Exception as error:  # the outermost loop of this thread
                # Who reads is told: data that has ended would be read on, and nobody counts that.
                self._end(None if self._is_over else error)  # else its client was closed under it
                return

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, random.uniform(0.5, 1.5) * RETRY_S)

    def _ask(self, want: int) -> None:
        me = self._me
        body = DataAsk(
            incarnation=me.incarnation,
            dataset=self._dataset,
            want=want,
            after=self._after,
            begun=True,  # whoever reads has joined
        )
        grant = self._client.lease_data(me.run.name, me.replica, body)
        with self._changed:
            self._outage.answered()
            self._after = max(self._after, grant.number)
            self._stock = joined(self._stock, grant.ranges)
            self._is_dry = not grant.ranges
            self._changed.notify_all()

    def _end(self, error: Exception | None) -> None:
        with self._changed:
            self._error, self._is_over = error, True
            self._changed.notify_all()

    def _give_back(self, ranges: Ranges) -> None:
        me = self._me
        for begin in range(0, len(ranges), RANGES_MAX):
            body = DataAsk(
                incarnation=me.incarnation,
                dataset=self._dataset,
                after=self._after,
                returned=list(ranges[begin : begin + RANGES_MAX]),
            )
            try:
                self._client.lease_data(me.run.name, me.replica, body)
            except SynclineError as error:
                so = "others read it once no round can be open that has it"
                log.warning("data.kept", why=error.message, so=so)
                return
