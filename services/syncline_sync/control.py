"""The sync service's line to the control plane: ask for memberships, report rounds and events.

With the control plane away nothing stops: the last membership stays in force (it is kept on disk,
so over a restart too), and reports wait in a bounded queue. At the end of the process what waits
there is sent for a last time. What answers before a control plane has been heard may be somebody
else, whom no patience would change: that ends the process. Who hangs up without a word is nobody:
a forwarder does so while there is none behind it. Until a hello has been taken no new membership
is adopted.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import structlog
from pydantic import ValidationError

from syncline_proto.descriptors import none_left
from syncline_proto.errors import ConfigError, Forbidden, InvalidRequest
from syncline_proto.reports import EventIn, Reports, RoundReport, Settled
from syncline_proto.rest import (
    Membership,
    PhaseVote,
    Problem,
    SyncServiceHello,
)
from syncline_sync.files import replace_file
from syncline_sync.report_queue import ReportQueue, Told

log = structlog.get_logger()

POLL_S = 20.0
HELLO_S = 5.0
QUIET_S = 0.1
"""Before the next long poll, where one was answered with nothing new: who answers at once is not
asked without end."""

RETRY_S = (0.2, 5.0)
"""First and longest pause between attempts; doubled in between, with jitter."""

REPORT_TRIES = 10
"""Attempts at reports that the control plane answers with a failure of its own."""

AWAY = frozenset({408, 429, 502, 503, 504})
"""Statuses that ask for patience; the last three may be a gateway's, with nobody behind it yet."""

HUNG_UP = "Server disconnected"
"""So httpx calls an end of the connection before the first byte of an answer."""

VOTES_MAX = 10_000
"""That one hello takes; the others are said once some of these are settled."""


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
        votes: Callable[[], list[PhaseVote]] = list,
        tell_anew: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``votes`` go with every hello; ``hurry`` says that there are others.

        ``tell_anew`` puts into ``reports`` where a run stands, of which some were dropped.

        ``url`` may be several, with commas between: the first is asked for as long as it answers.
        """
        self._url, self._urls = url, deque(url.split(","))
        self._client, self._hello, self._adopt, self._votes = client, hello, adopt, votes
        self._hurry = asyncio.Event()
        self._welcome = asyncio.Event()
        """A hello has been taken: who is refused has no part in runs, but for those on its disk."""
        self._reports, self._snapshot, self._tell_anew = reports, snapshot, tell_anew
        self._connected: bool | None = None
        """Whether the last call was answered; None before the first has come to anything."""
        self._is_taken = False
        """The last hello that was answered was not refused."""
        self._heard = False
        """A control plane has answered here before, be it in an earlier life of this service."""

    async def adopt_snapshot(self) -> None:
        """Go on with the last known membership, until the control plane answers.

        It is a cache: one that cannot be read is passed over.
        """
        if not self._snapshot.exists():
            return
        try:
            membership = Membership.model_validate_json(self._snapshot.read_bytes())
        except (OSError, ValidationError) as error:
            why = str(error).partition("\n")[0]
            log.warning("the last membership is damaged", file=str(self._snapshot), why=why)
            return
        self._heard = True
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
        """Let the next hello come at once; of the loop."""
        self._hurry.set()

    async def _say_hello(self) -> None:
        path = f"/v1/sync-services/{self._hello.name}"
        while True:
            self._hurry.clear()
            hello = self._hello.model_copy(update={"votes": self._votes()[:VOTES_MAX]})
            answer = await self._try("PUT", path, hello.model_dump_json())
            self._is_taken = answer.is_success
            if answer.is_success:
                self._welcome.set()
                if self._heard:
                    self._answered()
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the hurry.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELLO_S):
                    await self._hurry.wait()

    async def _follow(self) -> None:
        version, instance = -1, ""
        while True:
            wait_s = POLL_S if version >= 0 else 0.0  # the first answer comes at once
            path = f"/v1/membership?after={max(version, 0)}&wait_s={wait_s:g}"
            told = await self._try("GET", path, timeout_s=POLL_S + 10.0, shape=_membership)
            answer, membership = told.content, _membership(told.content)
            self._heard = True
            self._answered()
            await self._welcome.wait()
            # A new database counts anew, and may have come to the number that another had.
            if (membership.version, membership.instance) == (version, instance):
                await asyncio.sleep(QUIET_S)
                continue
            version, instance = membership.version, membership.instance
            # Kept before it counts: after a kill nobody whose push was taken may be a stranger.
            await asyncio.to_thread(replace_file, self._snapshot, answer)
            await self._adopt(membership)

    async def send_last(self, within_s: float) -> None:
        """Send what is queued, and that we end, after ``run`` has been cancelled.

        What is not taken by then is lost; that we are gone is then learnt by our silence.
        """
        try:
            async with asyncio.timeout(within_s):
                while self._reports:
                    await self._send(*await self._reports.batch())
                me = self._hello
                # Whatever is answered: silence says the same a little later.
                with contextlib.suppress(httpx.HTTPError, OSError):
                    await self._client.delete(
                        f"{self._urls[0]}/v1/sync-services/{me.name}",
                        params={"instance": me.instance},
                    )
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
            answer = await self._try("POST", path, _text(reports), failures_max=REPORT_TRIES)
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
            await self._send(run, [bare])
            return
        self._reports.settle()
        if answer.is_success:
            for name in self._reports.taken():
                self._tell_anew(name)

    async def _try(
        self,
        method: str,
        path: str,
        body: str | None = None,
        timeout_s: float = 10.0,
        failures_max: float = math.inf,
        shape: Callable[[bytes], object] = bytes,
    ) -> httpx.Response:
        """Call until it answers in this shape; an answer that refuses is logged and taken as one.

        So is the last of ``failures_max`` answers that tell of a failure of its own (5xx, but
        for those that ask for patience). Where there are several, the next is asked next.

        Raises:
            Forbidden: it asks for another token than ours.
            ConfigError: who answers first is no control plane.
        """
        pause_s, failures = RETRY_S[0], 0
        while True:
            url = self._urls[0]
            try:
                answer = await self._client.request(
                    method,
                    url + path,
                    content=body,
                    headers={"content-type": "application/json"},
                    timeout=timeout_s,
                )
                if answer.is_success and self._has(shape, answer):
                    if self._heard:  # before that it may be anybody
                        self._answered()
                    return answer
                if answer.status_code in (401, 403):
                    raise Forbidden(
                        f"The control plane at {self._url} refuses our token: set "
                        "SYNCLINE_SYNC_TOKEN to its own."
                    )
                if self._is_first(method):
                    self._check(answer)
                failures += answer.status_code >= 500 and answer.status_code not in AWAY
                # 408 and 429 ask for patience, they refuse nothing.
                passing = answer.status_code in (408, 429)
                refused = answer.status_code < 500 and not passing and method != "GET"
                if refused or failures >= failures_max:
                    log.warning("control plane refused", path=path, why=_words_of(answer))
                    return answer
                self._gone(f"{answer.status_code} {answer.text[:200]}")
            except (httpx.RemoteProtocolError, httpx.DecodingError) as error:
                if self._is_first(method) and not str(error).startswith(HUNG_UP):
                    raise self._stranger("with no HTTP") from None
                self._gone(str(error))
            except httpx.TransportError as error:
                self._gone(str(error) or type(error).__name__)
            except OSError as error:
                if not none_left(error):
                    raise
                self._gone(str(error))
            if url == self._urls[0]:  # nobody has gone on to the next meanwhile
                self._urls.rotate(-1)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2.0 * pause_s, RETRY_S[1])

    def _has(self, shape: Callable[[bytes], object], answer: httpx.Response) -> bool:
        """Whether it is in this shape; who has taken the place of one that was heard may go again.

        Raises:
            ConfigError: it is not, and nobody has been heard yet.
        """
        try:
            shape(answer.content)
        except ValidationError:
            if not self._heard:
                raise self._stranger("with something of another shape") from None
            return False
        return True

    def _is_first(self, method: str) -> bool:
        """Whether nobody has been heard yet; reports leave it to the other calls to meet it."""
        return not self._heard and method != "POST"

    def _check(self, answer: httpx.Response) -> None:
        """Look at who it is that refuses.

        Raises:
            ConfigError: nothing that a control plane says of the paths that it has.
        """
        if answer.status_code in AWAY:
            return
        problem = _problem_of(answer)
        if problem is None:
            raise self._stranger(
                f"{answer.status_code}, without the reason that a control plane gives"
            )
        if answer.status_code in (404, 405) and problem.code == InvalidRequest.code:
            raise self._stranger(f"that it has no {answer.request.url.path}")

    def _stranger(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._url} is not a Syncline control plane of this version: it answered "
            f"{what}. Check the address (--control, SYNCLINE_SYNC_CONTROL)."
        )

    def _gone(self, why: str) -> None:
        if self._connected is not False:
            self._connected = False
            what = "control plane away; going on with the last membership"
            what = what if self._heard else "waiting for the control plane"
            log.warning(what, url=self._url, why=why)

    def _answered(self) -> None:
        """Say so once our hello is taken, too: who is refused has no part in runs."""
        if self._is_taken and not self._connected:
            self._connected = True
            log.info("connected to the control plane", url=self._url)


def _text(reports: Reports) -> str:
    """Without what goes without saying: most of a large batch."""
    return reports.model_dump_json(exclude_defaults=True)


def _without_data(told: Told) -> Told:
    """Of a round what is told besides leased data, which can be long."""
    if not isinstance(told, RoundReport):
        return told
    pushes = [one.model_copy(update={"data": []}) for one in told.contributions]
    return told.model_copy(update={"data": None, "contributions": pushes})


def _words_of(answer: httpx.Response) -> str:
    """What a refusal says to people; of what is no problem details its beginning."""
    problem = _problem_of(answer)
    return problem.detail if problem else answer.text[:300]


def _membership(answer: bytes) -> Membership:
    return Membership.model_validate_json(answer)


def _problem_of(answer: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate_json(answer.content)
    except ValidationError:
        return None
