"""The control plane as a replica sees it: one method for each REST call that it makes.

Each call is made once (``leave`` twice at most); who may repeat one knows whether that is safe. One
client belongs to one thread; the heartbeat has its own, so that it never waits behind another call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from syncline.rest import Rest, below_v1
from syncline_proto.errors import ConfigError, InvalidRequest, Unreachable
from syncline_proto.leased import DataAsk, DataGrant
from syncline_proto.names import in_one_line
from syncline_proto.rest import (
    WHY_CHARACTERS_MAX,
    Heartbeat,
    HeartbeatAnswer,
    Registration,
    ReplicaRegister,
    ReplicaView,
    RunCreate,
    RunView,
    SyncEndpoint,
)

NAMED_MAX = 4
"""Sync services that a sentence names."""

CONNECT_S = 20.0
"""One attempt to connect, at most; a wide network may need it."""


class ControlClient:
    """REST calls to one control plane; they raise what ``Rest`` says."""

    def __init__(
        self, url: str, token: str | None, timeout_s: float, connect_s: float = CONNECT_S
    ) -> None:
        """Connect to nothing yet; ``timeout_s`` is for a request, ``connect_s`` for its connection.

        Raises:
            ConfigError: the address or the token cannot be used.
        """
        self._rest = Rest(url, token, timeout_s, connect_s)
        self.url = self._rest.url

    def close(self) -> None:
        self._rest.close()

    def create_run(self, body: RunCreate) -> RunView:
        return self._rest.call("POST", "/v1/runs", RunView, body=_json(body))

    def run(self, run: str) -> RunView:
        return self._rest.call("GET", below_v1("runs", run), RunView)

    def finish_run(self, run: str) -> RunView:
        return self._rest.call("POST", below_v1("runs", run, "finish"), RunView)

    def register(self, run: str, body: ReplicaRegister) -> Registration:
        """Ask for a lease. Not idempotent: each answer is a new incarnation."""
        path = below_v1("runs", run, "replicas")
        return self._rest.call("POST", path, Registration, body=_json(body))

    def heartbeat(self, run: str, replica: str, body: Heartbeat) -> HeartbeatAnswer:
        path = below_v1("runs", run, "replicas", replica, "heartbeat")
        return self._rest.call("POST", path, HeartbeatAnswer, body=_json(body))

    def lease_data(self, run: str, replica: str, body: DataAsk) -> DataGrant:
        """Ask for sequences; a call whose answer was lost is safe to repeat."""
        path = below_v1("runs", run, "replicas", replica, "data")
        return self._rest.call("POST", path, DataGrant, body=_json(body))

    def leave(self, run: str, replica: str, incarnation: int, why: str) -> None:
        """Give the lease back; ``why`` goes into the run's log, in one line, unless it is empty.

        Where the request is refused with it (by a proxy, for its length), it is made without.
        """
        path = below_v1("runs", run, "replicas", replica)
        query: dict[str, int | str] = {"incarnation": incarnation}
        line = in_one_line(why, WHY_CHARACTERS_MAX)
        if line:
            try:
                self._rest.send("DELETE", path, query=query | {"why": line})
                return
            except (ConfigError, InvalidRequest):
                pass  # the lease matters more than the words
        self._rest.send("DELETE", path, query=query)

    def replicas(self, run: str) -> list[ReplicaView]:
        return self._rest.call("GET", below_v1("runs", run, "replicas"), list[ReplicaView])

    def sync_services(self) -> list[SyncEndpoint]:
        return self._rest.call("GET", "/v1/sync-services", list[SyncEndpoint])


def all_alive(services: Iterable[SyncEndpoint], url: str) -> list[SyncEndpoint]:
    """The sync services that own every fragment together.

    Raises:
        Unreachable: there is none, or one of them is missing; it is named.
    """
    known = list(services)
    alive = [service for service in known if service.alive]
    if not alive:
        raise Unreachable(_none_alive(known, url))
    shards = alive[0].shards
    missing = sorted(set(range(shards)) - {service.index for service in alive})
    if missing:
        these = ", ".join(map(str, missing))
        raise Unreachable(
            f"Of the {shards} sync services at {url} that share the fragments, {these} (counted "
            f"from 0) {'is' if len(missing) == 1 else 'are'} missing; start it again "
            f"on its own folder and ports: syncline-sync --control {url} --shards {shards} "
            f"--index {missing[0]} --data FOLDER"
        )
    return alive


def _none_alive(known: list[SyncEndpoint], url: str) -> str:
    """What there is to be done where no sync service is alive, but some may have been."""
    begin = f"syncline-sync --control {url}"
    if not known:
        return f"No sync service is alive at {url}; start one: {begin}"
    named = ", ".join(f"{service.name} ({service.address})" for service in known[:NAMED_MAX])
    more = f" and {len(known) - NAMED_MAX} more" if len(known) > NAMED_MAX else ""
    again = "it again on its" if len(known) == 1 else "them again, each on its own"
    first = known[0]
    seat = f" --shards {first.shards} --index {first.index}" if first.shards > 1 else ""
    return (
        f"No sync service is alive at {url}, where {named}{more} had been; start {again} "
        f"folder and ports: {begin}{seat} --data FOLDER"
    )


def _json(body: BaseModel) -> dict[str, Any]:
    return body.model_dump(mode="json")
