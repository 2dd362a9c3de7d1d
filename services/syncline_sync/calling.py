"""Calls to the control plane: each is made again until it is answered, and by whom is looked at.

Until a control plane has been heard, what answers may be something else, which no patience would
change: that ends the process. Whoever hangs up without a word counts as nobody: a forwarder does so
while there is nothing behind it. Knows nothing of what is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Callable

import httpx
import structlog
from pydantic import ValidationError

from syncline_proto.descriptors import none_left
from syncline_proto.errors import ConfigError, Forbidden, InvalidRequest
from syncline_proto.rest import Problem

log = structlog.get_logger()

RETRY_S = (0.2, 5.0)
"""First and longest pause between attempts; doubled in between, with jitter."""

AWAY = frozenset({408, 429, 502, 503, 504})
"""Statuses that ask for patience; the last three may be a gateway's, with nobody behind it yet."""

UNFIT = frozenset({400, 413, 414, 422, 431})
"""Statuses that refuse what a call says."""

HUNG_UP = "Server disconnected"
"""So httpx calls an end of the connection before the first byte of an answer."""


class Caller:
    """One control plane, which may have several addresses."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        """``url`` may be several, with commas between: the first is asked as long as it answers."""
        self._client = client
        self._url, self._urls = url, deque(url.split(","))
        self._connected: bool | None = None
        """Whether the last call was answered; None before the first has come to anything."""
        self._is_taken = False
        """Our last hello that was answered was not refused."""
        self._heard = False
        """A control plane has answered here before, be it in an earlier life of this service."""

    def hear(self) -> None:
        """A control plane has answered, now or in an earlier life of this service."""
        self._heard = True
        self._answered()

    def see_hello(self, is_taken: bool) -> None:
        """Our hello was answered: it was taken, or refused."""
        self._is_taken = is_taken
        if is_taken and self._heard:
            self._answered()

    async def call_once(self, method: str, path: str, query: dict[str, str]) -> bool:
        """Call, and pass over whatever is answered, or that nothing is.

        Returns whether the call itself was refused: what it says, or how long that is.
        """
        with contextlib.suppress(httpx.HTTPError, OSError):
            answer = await self._client.request(method, self._urls[0] + path, params=query)
            return answer.status_code in UNFIT
        return False

    async def call(
        self,
        method: str,
        path: str,
        body: str | None = None,
        timeout_s: float = 10.0,
        failures_max: float = math.inf,
        shape: Callable[[bytes], object] = bytes,
    ) -> httpx.Response:
        """Call until there is an answer in this shape, or one that refuses, which is logged.

        Also taken as an answer is the last of ``failures_max`` that tell of a failure of the
        control plane's own (5xx, but for those that ask for patience). Where there are several
        addresses, the next is tried next.

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
                is_passing = answer.status_code in AWAY
                failures += answer.status_code >= 500 and not is_passing
                refused = answer.status_code < 500 and not is_passing and method != "GET"
                if refused or failures >= failures_max:
                    log.warning("control plane refused", path=path, why=_words_of(answer))
                    return answer
                self._gone(f"{answer.status_code}: {_words_of(answer)}")
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
        """Whether it is in this shape; a stranger in the place of one we have heard may go again.

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
        """Whether nobody has been heard yet; reports leave the first meeting to the other calls."""
        return not self._heard and method != "POST"

    def _check(self, answer: httpx.Response) -> None:
        """Look at who it is that refuses.

        Raises:
            ConfigError: a control plane would not answer so on a path that it has.
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
        """Say that we are connected, if our hello is taken: who is refused has no part in runs."""
        if self._is_taken and not self._connected:
            self._connected = True
            log.info("connected to the control plane", url=self._url)


def code_of(answer: httpx.Response) -> str:
    """The code of one of our errors; empty if it is none."""
    problem = _problem_of(answer)
    return problem.code if problem else ""


def _words_of(answer: httpx.Response) -> str:
    """What a refusal says to people; of what is no problem details its beginning."""
    problem = _problem_of(answer)
    return problem.detail if problem else answer.text[:300]


def _problem_of(answer: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate_json(answer.content)
    except ValidationError:
        return None
