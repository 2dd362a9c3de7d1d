"""The control plane's REST interface, as those who look after runs need it.

Every call has a timeout and is made once: a person wants to know at once that nobody answers.
Proxies of the environment are not used, since services are spoken to directly.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from syncline.settings import control_url
from syncline_proto.errors import ConfigError, SynclineError, Unreachable, from_code
from syncline_proto.rest import (
    Event,
    Problem,
    ReplicaView,
    RoundReport,
    RunCreate,
    RunView,
    SettingsPatch,
    SyncEndpoint,
)

Shape = TypeVar("Shape")

CONNECT_S = 3.0
CALL_S = 15.0
STREAM_SILENCE_S = 45.0
"""Three keep-alive comments of the event stream."""
RECONNECT_S = 60.0
"""How long ``follow`` tries to come back to a control plane that went away."""


class OperatorClient:
    """One control plane. Use as a context manager.

    Raises, from every call: Unreachable when it does not answer, Forbidden for a wrong token, and
    whatever error the control plane names.
    """

    def __init__(self, url: str, token: str | None = None, *, call_s: float = CALL_S) -> None:
        self.url = control_url(url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(call_s, connect=min(CONNECT_S, call_s)),
                trust_env=False,
            )
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"--control or --token cannot be used ({error}).") from None
        if not self._http.base_url.host:
            raise ConfigError(f"--control {url} names no host; write http://HOST:PORT.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def ready(self) -> bool:
        """Whether it is up and its database answers."""
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def server_time(self) -> float | None:
        """Seconds since 1970 by the server's Date header (whole seconds); None without one."""
        from email.utils import parsedate_to_datetime

        date = self._send("GET", "/healthz").headers.get("date")
        return parsedate_to_datetime(date).timestamp() if date else None

    def runs(self) -> list[RunView]:
        return self._get(TypeAdapter(list[RunView]), "/v1/runs")

    def run(self, name: str) -> RunView:
        return self._get(TypeAdapter(RunView), _path("runs", name))

    def create_run(self, run: RunCreate) -> RunView:
        return self._change("POST", "/v1/runs", json=run.model_dump(mode="json"))

    def move_run(self, name: str, act: str) -> RunView:
        """Pause, resume or stop a run."""
        return self._change("POST", _path("runs", name, act))

    def change_settings(self, name: str, settings: dict[str, Any]) -> RunView:
        body = SettingsPatch(settings=settings).model_dump(mode="json")
        return self._change("PATCH", _path("runs", name, "settings"), json=body)

    def replicas(self, run: str) -> list[ReplicaView]:
        return self._get(TypeAdapter(list[ReplicaView]), _path("runs", run, "replicas"))

    def drain(self, run: str, replica: str) -> None:
        self._send("POST", _path("runs", run, "replicas", replica, "drain"))

    def kick(self, run: str, replica: str) -> None:
        self._send("POST", _path("runs", run, "replicas", replica, "kick"))

    def rounds(self, run: str, limit: int) -> list[RoundReport]:
        return self._get(TypeAdapter(list[RoundReport]), _path("runs", run, "rounds"), limit=limit)

    def sync_services(self) -> list[SyncEndpoint]:
        return self._get(TypeAdapter(list[SyncEndpoint]), "/v1/sync-services")

    def events(self, run: str | None, after: int | None, limit: int) -> list[Event]:
        return self._get(TypeAdapter(list[Event]), "/v1/events", run=run, after=after, limit=limit)

    def follow(self, run: str | None, after: int) -> Generator[Event]:
        """Yield events as they happen, from the one after ``after`` on, for ever.

        Comes back by itself where it stopped when the connection breaks.

        Raises:
            Unreachable: the control plane stayed away for a minute.
        """
        lost_at: float | None = None
        while True:
            try:
                for event in self._stream(run, after):
                    after, lost_at = event.id, None
                    yield event
            except Unreachable:
                now = time.monotonic()
                lost_at = lost_at or now
                if now - lost_at > RECONNECT_S:
                    raise
            time.sleep(1.0)

    def _stream(self, run: str | None, after: int) -> Iterator[Event]:
        """Yield from one connection to the server-sent events until it ends."""
        request = self._http.build_request(
            "GET",
            "/v1/events/stream",
            params=_given(run=run),
            headers={"Last-Event-ID": str(after), "Accept": "text/event-stream"},
            timeout=httpx.Timeout(CALL_S, connect=CONNECT_S, read=STREAM_SILENCE_S),
        )
        try:
            answer = self._http.send(request, stream=True)
            try:
                if answer.is_error:
                    answer.read()
                    raise self._refusal(answer)
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        yield Event.model_validate_json(line.removeprefix("data:"))
            finally:
                answer.close()
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _get(self, shape: TypeAdapter[Shape], path: str, **query: Any) -> Shape:
        return self._read(shape, self._send("GET", path, query=_given(**query)))

    def _change(self, method: str, path: str, *, json: Any = None) -> RunView:
        """Send what changes a run; return the run as it is then."""
        return self._read(TypeAdapter(RunView), self._send(method, path, json=json))

    def _send(
        self, method: str, path: str, *, json: Any = None, query: dict[str, Any] | None = None
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=json, params=query)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if not answer.is_success:
            raise self._refusal(answer)
        return answer

    def _read(self, shape: TypeAdapter[Shape], answer: httpx.Response) -> Shape:
        try:
            return shape.validate_json(answer.content)
        except ValidationError:
            raise self._stranger(answer) from None

    def _refusal(self, answer: httpx.Response) -> SynclineError:
        """Return the control plane's own error, if it is one that answered."""
        try:
            problem = Problem.model_validate_json(answer.content)
        except ValidationError:
            return self._stranger(answer)
        return from_code(problem.code, problem.detail)

    def _stranger(self, answer: httpx.Response) -> SynclineError:
        return ConfigError(
            f"{self.url} answers ({answer.status_code}), but not as a Syncline control plane of "
            "this version; check --control."
        )

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        reason = "timed out" if isinstance(error, httpx.TimeoutException) else str(error)
        return Unreachable(
            f"The control plane at {self.url} does not answer ({reason}); start it with "
            "syncline-control, or name another with --control."
        )


def _path(*parts: str) -> str:
    """Return a path below /v1 whose parts cannot be anything but parts."""
    from urllib.parse import quote

    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _given(**query: Any) -> dict[str, Any]:
    return {key: value for key, value in query.items() if value is not None}
