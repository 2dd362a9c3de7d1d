"""The sync service's line to the control plane: ask for memberships, report rounds and events.

With the control plane away nothing stops: the last membership stays in force (it is kept on disk,
so over a restart too), and reports wait in a bounded queue. At the end of the process what waits
there is sent for a last time. Until a hello has been taken no new membership is adopted. How a call
is made, and what may answer it, ``calling`` says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import structlog

from syncline_proto.errors import Forbidden, StoreError
from syncline_proto.names import in_one_line
from syncline_proto.reports import EventIn, Reports, RoundReport, Settled
from syncline_proto.rest import WHY_CHARACTERS_MAX, Membership, PhaseVote, SyncServiceHello
from syncline_sync.calling import Caller, code_of
from syncline_sync.files import SEAL, replace_file
from syncline_sync.report_queue import ReportQueue, Told

log = structlog.get_logger()

POLL_S = 20.0
HELLO_S = 5.0
QUIET_S = 0.1
"""Before the next long poll, where one was answered with nothing new: who answers at once is not
asked without end."""

REPORT_TRIES = 10
"""Attempts at reports that the control plane answers with a failure of its own."""

STORE_PATIENCE = 15
"""So many times ``REPORT_TRIES``, some ten minutes, where it is its database that fails: a disk
that is full has room again one day, and then everything that was done meanwhile is to be known."""

VOTES_MAX = 10_000
"""In one hello; the others are sent once some of these are settled."""


_NOTHING = (-1, "")
"""No membership has been adopted."""


class ControlLink:
    """Keeps this service and the control plane in touch."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        hello: SyncServiceHello,
        adopt: Callable[[Membership], Awaitable[None]],
        reports: ReportQueue,
        snapshot: Path,
        votes: Callable[[], list[PhaseVote]],
        tell_anew: Callable[[str], None],
        at_disk: Callable[..., Awaitable[Any]],
    ) -> None:
        """``client`` and ``url`` are the ``Caller``'s. ``snapshot`` keeps the last membership; it
        is written ``at_disk``, which runs what it is given off the loop.

        ``votes`` go with every hello; call ``hurry`` when they have changed. ``tell_anew`` puts
        into ``reports`` where a run stands of which reports were dropped.
        """
        self._caller = Caller(client, url)
        self._hello, self._adopt, self._votes = hello, adopt, votes
        self._hurry = asyncio.Event()
        self._in_vain = 0
        """How often the oldest reports were answered with a failure, in a row."""
        self._is_behind = False
        """Its database has cost reports, and it has taken nothing since: nothing else may come of a
        run that has ended or waits, so a hello that is taken makes up for them, too."""
        self._welcome = asyncio.Event()
        """A hello has been taken: who is refused has no part in runs, but for those on its disk."""
        self.is_refused = False
        """Our last hello was: another has our name, or a seat that is not for us."""
        self._seen = _NOTHING
        """The (version, instance) of the membership that was adopted last."""
        self._reports, self._tell_anew = reports, tell_anew
        self._snapshot, self._at_disk = snapshot, at_disk

    async def adopt_snapshot(self) -> None:
        """Go on with the last known membership, until the control plane answers.

        It is a cache: one that cannot be read, or was changed, is passed over.
        """
        try:
            kept = await self._at_disk(self._snapshot.read_bytes)
            membership = Membership.model_validate_json(SEAL.open(kept))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            why = str(error).partition("\n")[0]
            log.warning("the last membership is damaged", file=str(self._snapshot), why=why)
            return
        self._caller.hear()
        await self._adopt(membership)

    async def run(self) -> None:
        """Hello, membership and reports, each in a loop of its own, until cancelled."""
        works = (self._say_hello, self._follow, self._send_reports)
        loops = [asyncio.create_task(work()) for work in works]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    def hurry(self) -> None:
        """Send the next hello at once; called on the loop."""
        self._hurry.set()

    async def _say_hello(self) -> None:
        path = f"/v1/sync-services/{self._hello.name}"
        while True:
            self._hurry.clear()
            hello = self._hello.model_copy(update={"votes": self._votes()[:VOTES_MAX]})
            answer = await self._caller.call("PUT", path, hello.model_dump_json())
            self._caller.see_hello(answer.is_success)
            if self.is_refused and answer.is_success:
                self._seen = _NOTHING  # what was not for us may be now
            self.is_refused = not answer.is_success
            if answer.is_success:
                self._welcome.set()
                if self._is_behind:
                    self._taken()
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the hurry.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELLO_S):
                    await self._hurry.wait()

    async def _follow(self) -> None:
        while True:
            seen = self._seen
            version, _ = seen
            wait_s = POLL_S if version >= 0 else 0.0  # the first answer comes at once
            path = f"/v1/membership?after={max(version, 0)}&wait_s={wait_s:g}"
            told = await self._caller.call("GET", path, timeout_s=POLL_S + 10.0, shape=_membership)
            answer, membership = told.content, _membership(told.content)
            self._caller.hear()
            await self._welcome.wait()
            if self._seen is not seen:  # it was asked for before all of it was for us
                continue
            # A new database counts anew, and may have come to the number that another had.
            if (membership.version, membership.instance) == seen:
                await asyncio.sleep(QUIET_S)
                continue
            self._seen = membership.version, membership.instance
            # Kept before it counts: after a kill nobody whose push was taken may be a stranger.
            await self._at_disk(replace_file, self._snapshot, SEAL.close(answer.decode()))
            await self._adopt(membership)

    async def send_last(self, within_s: float, why: str = "") -> None:
        """Send what is queued, and that we end, after ``run`` has been cancelled.

        ``why`` goes with it, in one line, unless it is empty. Where the call is refused with it (by
        a proxy, for its length), it is made without.

        What is not taken by then is lost; that we are gone is then learnt by our silence.
        """
        try:
            async with asyncio.timeout(within_s):
                while self._reports:
                    await self._send(*await self._reports.batch())
                me = self._hello
                # Once: silence says the same a little later.
                path, query = f"/v1/sync-services/{me.name}", {"instance": me.instance}
                line = in_one_line(why, WHY_CHARACTERS_MAX)
                said = query | {"why": line} if line else query
                if await self._caller.call_once("DELETE", path, said) and line:
                    await self._caller.call_once("DELETE", path, query)
        except (TimeoutError, Forbidden):
            if self._reports:
                log.warning("the last reports were not taken", count=len(self._reports))

    async def _send_reports(self) -> None:
        while True:
            await self._send(*await self._reports.batch())

    async def _send(self, run: str, batch: list[Told]) -> None:
        """Send a batch; one that is cut short is queued again (a round told twice counts once)."""
        reports = Reports(
            rounds=[what for what in batch if isinstance(what, RoundReport)],
            events=[what for what in batch if isinstance(what, EventIn)],
            settled=[what for what in batch if isinstance(what, Settled)],
        )
        path = f"/v1/runs/{run}/reports"
        try:
            answer = await self._caller.call(
                "POST", path, _text(reports), failures_max=REPORT_TRIES
            )
        except (asyncio.CancelledError, Forbidden):
            self._reports.put_back(run, batch)
            raise
        if answer.status_code == 413 and len(batch) > 1:
            half = len(batch) // 2
            self._reports.put_back(run, batch[half:])
            await self._send(run, batch[:half])
            return
        if answer.status_code == 413 and (bare := _without_data(batch[0])) != batch[0]:
            log.warning("too much data to tell of; only the round is told", run=run)
            if not _says_where_it_stands(batch[0]):  # to tell that anew would be as much again
                self._reports.lose(run, 1)
            await self._send(run, [bare])
            return
        if answer.is_success:
            self._in_vain = 0
            self._reports.settle()
            self._taken()
            return
        self._in_vain += 1
        is_stores = code_of(answer) == StoreError.code
        if is_stores and self._in_vain < STORE_PATIENCE:
            self._reports.put_back(run, batch)
            return
        self._in_vain = 0
        self._is_behind = self._is_behind or is_stores
        self._reports.settle()
        if answer.status_code != 404:  # of a run that is no more nothing is ever heard
            self._reports.lose(run, len(batch))

    def _taken(self) -> None:
        """It takes what it is told: tell where runs stand of which it missed something."""
        self._is_behind = False
        for name in self._reports.taken():
            self._tell_anew(name)


def _text(reports: Reports) -> str:
    """Without what goes without saying: most of a large batch."""
    return reports.model_dump_json(exclude_defaults=True)


def _without_data(told: Told) -> Told:
    """Of a round what is told besides leased data, which can be long."""
    if not isinstance(told, RoundReport):
        return told
    pushes = [one.model_copy(update={"data": []}) for one in told.contributions]
    return told.model_copy(update={"data": None, "contributions": pushes})


def _says_where_it_stands(told: Told) -> bool:
    return isinstance(told, RoundReport) and told.data is not None


def _membership(answer: bytes) -> Membership:
    return Membership.model_validate_json(answer)
