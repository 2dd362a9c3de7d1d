"""The control plane's REST interface, as those who look after runs need it.

Every call is made once: a person wants to know at once that nobody answers.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from email.utils import parsedate_to_datetime
from typing import Any, Self

from syncline.rest import Rest, below_v1
from syncline_proto.errors import SynclineError, Unreachable
from syncline_proto.leased import DataView
from syncline_proto.reports import EventIn, Reports, RoundReport
from syncline_proto.rest import (
    Event,
    ReplicaView,
    RunCreate,
    RunView,
    Scale,
    SettingsPatch,
    SyncEndpoint,
)
from syncline_proto.settings import changed

CONNECT_S = 3.0
CALL_S = 15.0
RUNS_LISTED = 1000
"""Of more runs than these, the newest are told."""
STREAM_SILENCE_S = 45.0
"""Three keep-alive comments of the event stream."""
RECONNECT_S = 60.0
"""How long ``follow`` tries to come back to a control plane that went away."""


class OperatorClient:
    """One control plane; calls raise what ``Rest`` says. Use as a context manager."""

    def __init__(self, url: str, token: str | None = None, *, call_s: float = CALL_S) -> None:
        """Connect to nothing yet; ``call_s`` is the time for each request.

        Raises:
            ConfigError: the address or the token cannot be used.
        """
        self._rest = Rest(url, token, call_s, CONNECT_S)
        self.url = self._rest.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest.close()

    def ready(self) -> bool:
        """Whether its database answers, too."""
        try:
            self._rest.send("GET", "/readyz")
        except SynclineError:
            return False
        return True

    def server_time(self) -> float | None:
        """Seconds since 1970 by the server's Date header (whole seconds); None without one."""
        date = self._rest.send("GET", "/healthz").headers.get("date")
        try:
            return parsedate_to_datetime(date).timestamp() if date else None
        except ValueError:
            return None

    def runs(self) -> list[RunView]:
        """The newest ``RUNS_LISTED``, newest first; without their jobs, which ``run`` tells."""
        query = {"limit": RUNS_LISTED}
        return self._rest.call("GET", "/v1/runs", list[RunView], query=query)

    def run(self, name: str) -> RunView:
        return self._rest.call("GET", below_v1("runs", name), RunView)

    def create_run(self, run: RunCreate) -> RunView:
        body = run.model_dump(mode="json")
        return self._rest.call("POST", "/v1/runs", RunView, body=body)

    def move_run(self, name: str, act: str) -> RunView:
        """Pause, resume or stop a run."""
        return self._rest.call("POST", below_v1("runs", name, act), RunView)

    def change_settings(self, name: str, settings: dict[str, Any]) -> RunView:
        """Change live settings of a run.

        Raises:
            ConfigError: a key or value is wrong. It is said here, since whoever typed it reads it;
                to the control plane the same is a broken rule of the contract.
        """
        changed(self.run(name).settings, settings)
        body = SettingsPatch(settings=settings).model_dump(mode="json")
        return self._rest.call("PATCH", below_v1("runs", name, "settings"), RunView, body=body)

    def scale(self, name: str, replicas: int | None) -> RunView:
        """Say how many replicas a run should have; None: nobody says."""
        body = Scale(replicas=replicas).model_dump(mode="json")
        return self._rest.call("PUT", below_v1("runs", name, "scale"), RunView, body=body)

    def replicas(self, run: str) -> list[ReplicaView]:
        return self._rest.call("GET", below_v1("runs", run, "replicas"), list[ReplicaView])

    def data(self, run: str) -> DataView:
        return self._rest.call("GET", below_v1("runs", run, "data"), DataView)

    def drain(self, run: str, replica: str) -> ReplicaView:
        where = below_v1("runs", run, "replicas", replica, "drain")
        return self._rest.call("POST", where, ReplicaView)

    def kick(self, run: str, replica: str) -> ReplicaView:
        """Take its lease away; where it held none nothing happens, and it may come back."""
        where = below_v1("runs", run, "replicas", replica, "kick")
        return self._rest.call("POST", where, ReplicaView)

    def rounds(self, run: str, limit: int) -> list[RoundReport]:
        path = below_v1("runs", run, "rounds")
        return self._rest.call("GET", path, list[RoundReport], query={"limit": limit})

    def tell(self, run: str, event: EventIn) -> None:
        """Add a line to a run's log."""
        body = Reports(events=[event]).model_dump(mode="json")
        self._rest.send("POST", below_v1("runs", run, "reports"), body=body)

    def sync_services(self) -> list[SyncEndpoint]:
        return self._rest.call("GET", "/v1/sync-services", list[SyncEndpoint])

    def events(
        self, run: str | None, after: int | None, limit: int, kind: str | None = None
    ) -> list[Event]:
        query = _given(run=run, after=after, limit=limit, kind=kind)
        return self._rest.call("GET", "/v1/events", list[Event], query=query)

    def follow(self, run: str | None, after: int) -> Generator[Event]:
        """Yield events as they happen, from the one after ``after`` on, for ever.

        Comes back by itself where it stopped when the connection breaks.

        Raises:
            Unreachable: the control plane stayed away for a minute.
        """
        lost_at: float | None = None
        query = _given(run=run)
        while True:
            headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
            path = "/v1/events/stream"
            try:
                with self._rest.stream(path, query, headers, STREAM_SILENCE_S) as lines:
                    lost_at = None  # a quiet run has no event to say so
                    for line in lines:
                        if line.startswith("data:"):
                            event = self._rest.read(Event, line.removeprefix("data:"))
                            after = event.id
                            yield event
            except Unreachable:
                now = time.monotonic()
                lost_at = lost_at or now
                if now - lost_at > RECONNECT_S:
                    raise
            time.sleep(1.0)


def _given(**query: Any) -> dict[str, Any]:
    return {key: value for key, value in query.items() if value is not None}
