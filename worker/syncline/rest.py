"""One call to a control plane: what is sent, and what each way to answer means.

Every call is made once and has a bound in time and size; who may repeat one knows whether that is
safe. A control plane of several processes has several addresses: the first that can be reached is
asked, and goes on being asked until it does not answer. What answers may be somebody else: then the
error says so, and never repeats what came. Proxies of the environment are not used, since services
are spoken to directly.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from syncline_proto.addresses import bearer_token, control_url
from syncline_proto.errors import ConfigError, SynclineError, Unreachable, from_code
from syncline_proto.names import NAME_WORDS, valid_name
from syncline_proto.rest import Problem

Shape = TypeVar("Shape")

BODY_BYTES_MAX = 64 << 20
"""Far above any answer of a control plane."""

GATEWAY = frozenset({502, 503, 504})
"""Statuses with which something in between says that the control plane is away."""


def below_v1(*parts: str) -> str:
    """Return a path below /v1 whose parts cannot be anything but parts.

    Raises:
        ConfigError: one of them can be no name.
    """
    for part in parts:
        if not valid_name(part):
            raise ConfigError(
                f"{part[:80]!r} cannot be the name of a run or replica, which must be {NAME_WORDS}."
            )
    return "/v1/" + "/".join(parts)


class Rest:
    """REST calls to one control plane, from one thread.

    Invariant: who is asked next is the first of ``_clients``, one for each address.

    Raises (every call):
        Unreachable: no answer in time, or a gateway's.
        ConfigError: what answers is no control plane of this version.
        SynclineError: the class that the answer's ``code`` names.
    """

    def __init__(self, url: str, token: str | None, call_s: float, connect_s: float) -> None:
        """``url`` may be several, with commas between.

        ``call_s`` is how long an answer may stand still, and twice that how long it may take.

        Raises:
            ConfigError: the address or the token cannot be used.
        """
        self.url = control_url(url)
        self._call_s = call_s
        self._met = False
        """A control plane has answered here before."""
        token = bearer_token(token)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = httpx.Timeout(call_s, connect=min(connect_s, call_s))
        try:
            self._clients = deque(
                httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False)
                for url in self.url.split(",")
            )
        except httpx.InvalidURL as error:
            raise ConfigError(f"{self.url} is not an address ({error}).") from None

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def call(
        self, method: str, path: str, shape: type[Shape], *, body: Any = None, query: Any = None
    ) -> Shape:
        """Return the answer, read as ``shape`` (a type that pydantic knows)."""
        return self.read(shape, self.send(method, path, body=body, query=query).content)

    def read(self, shape: type[Shape], text: str | bytes) -> Shape:
        """Return what came, read as ``shape``."""
        try:
            read = TypeAdapter(shape).validate_json(text)
        except ValidationError:
            raise self._stranger("with something of another shape") from None
        self._met = True
        return read

    def send(
        self, method: str, path: str, *, body: Any = None, query: Any = None
    ) -> httpx.Response:
        """Return an answer of success, whatever is in it."""
        with self._sent(method, path, json=body, params=query) as answer:
            return self._whole(answer)

    @contextmanager
    def stream(
        self, path: str, query: dict[str, Any], headers: dict[str, str], silence_s: float
    ) -> Iterator[Iterator[str]]:
        """Yield the lines of a stream of server-sent events as they come."""
        timeout = httpx.Timeout(self._call_s, read=silence_s)
        with self._sent("GET", path, params=query, headers=headers, timeout=timeout) as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise self._stranger(f"{answer.status_code} and no stream of events")
            yield answer.iter_lines()

    @contextmanager
    def _sent(self, method: str, path: str, **what: Any) -> Iterator[httpx.Response]:
        """Yield an answer of success, not read yet; what fails while it is read, too, is ours."""
        try:
            answer = self._begun(method, path, what)
            try:
                if not answer.is_success:
                    self._refuse(self._whole(answer))
                yield answer
            finally:
                answer.close()
        except (httpx.RemoteProtocolError, httpx.DecodingError) as error:
            if self._met:  # it was there a moment ago: it may be starting again
                raise self._away(error) from None
            raise self._stranger("with no HTTP, or by hanging up") from None
        except httpx.RequestError as error:
            raise self._away(error) from None

    def _begun(self, method: str, path: str, what: dict[str, Any]) -> httpx.Response:
        """Send a request to who is asked, or else to the first that can be reached."""
        left = len(self._clients)
        while True:
            request = self._clients[0].build_request(method, path, **what)
            try:
                return self._clients[0].send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):  # it has not been sent
                left -= 1
                if not left:
                    raise
                self._clients.rotate(-1)

    def _whole(self, answer: httpx.Response) -> httpx.Response:
        """Return the answer with its body, within the bounds."""
        end = time.monotonic() + 2 * self._call_s
        body = bytearray()
        for part in answer.iter_bytes():
            body += part
            if len(body) > BODY_BYTES_MAX or time.monotonic() > end:
                raise self._stranger(f"{answer.status_code} and did not come to an end")
        headers = {key: answer.headers[key] for key in ("date",) if key in answer.headers}
        return httpx.Response(answer.status_code, content=bytes(body), headers=headers)

    def _refuse(self, answer: httpx.Response) -> NoReturn:
        """Raise the control plane's own error, if it is one that answered."""
        if answer.status_code in GATEWAY:
            self._clients.rotate(-1)
        try:
            problem = Problem.model_validate_json(answer.content)
        except ValidationError:
            if answer.status_code in GATEWAY:
                raise Unreachable(
                    f"The control plane at {self.url} is not ready (a gateway answered "
                    f"{answer.status_code}); see that it runs."
                ) from None
            what = f"{answer.status_code}, without the reason that a control plane gives"
            raise self._stranger(what) from None
        self._met = True
        unknown = answer.status_code == httpx.codes.UNAUTHORIZED
        raise from_code(problem.code, problem.detail, "token" if unknown else None)

    def _stranger(self, what: str) -> SynclineError:
        return ConfigError(
            f"{self.url} is not a Syncline control plane of this version: it answered {what}. "
            "Check the address.",
            "control",
        )

    def _away(self, error: httpx.RequestError) -> Unreachable:
        self._clients.rotate(-1)  # the next call goes to the next
        timed_out = isinstance(error, httpx.TimeoutException)
        reason = "timed out" if timed_out else str(error) or type(error).__name__
        return Unreachable(
            f"The control plane at {self.url} does not answer ({reason}); see that "
            "syncline-control runs there, or name another.",
            "control",
        )
