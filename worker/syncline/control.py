"""The control plane as a replica sees it: one method for each REST call that it makes.

Each call is made once; who may repeat one knows whether that is safe. One client belongs to one
thread; the heartbeat has its own, so that it never waits behind another call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from syncline_proto.errors import SynclineError, Unreachable, from_code
from syncline_proto.rest import (
    Heartbeat,
    HeartbeatAnswer,
    Registration,
    ReplicaRegister,
    RunCreate,
    RunView,
    SyncEndpoint,
)

View = TypeVar("View", bound=BaseModel)


class ControlClient:
    """REST calls to one control plane.

    Raises (every call):
        Unreachable: no answer within ``timeout_s``, or a gateway's.
        SynclineError: the class that the answer's ``code`` names.
    """

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=f"{url}/v1", headers=headers, timeout=timeout_s, trust_env=False
        )

    def close(self) -> None:
        self._http.close()

    def create_run(self, body: RunCreate) -> RunView:
        return self._call("POST", "/runs", RunView, body)

    def run(self, run: str) -> RunView:
        return self._call("GET", f"/runs/{quote(run)}", RunView)

    def finish_run(self, run: str) -> RunView:
        return self._call("POST", f"/runs/{quote(run)}/finish", RunView)

    def register(self, run: str, body: ReplicaRegister) -> Registration:
        """Ask for a lease. Not idempotent: each answer is a new incarnation."""
        return self._call("POST", f"/runs/{quote(run)}/replicas", Registration, body)

    def heartbeat(self, run: str, replica: str, body: Heartbeat) -> HeartbeatAnswer:
        path = f"/runs/{quote(run)}/replicas/{quote(replica)}/heartbeat"
        return self._call("POST", path, HeartbeatAnswer, body)

    def leave(self, run: str, replica: str, incarnation: int) -> None:
        path = f"/runs/{quote(run)}/replicas/{quote(replica)}"
        self._request("DELETE", path, params={"incarnation": incarnation})

    def sync_services(self) -> list[SyncEndpoint]:
        answer = self._request("GET", "/sync-services")
        return [SyncEndpoint.model_validate(one) for one in answer.json()]

    def _call(
        self, method: str, path: str, view: type[View], body: BaseModel | None = None
    ) -> View:
        sent = None if body is None else body.model_dump(mode="json")
        answer = self._request(method, path, json=sent)
        try:
            return view.model_validate_json(answer.content)
        except ValidationError as error:
            what = error.errors()[0]
            raise SynclineError(
                f"The answer of {self.url} to {method} {path} is not of this version "
                f"({'.'.join(map(str, what['loc']))}: {what['msg']}); use equal versions."
            ) from None

    def _request(self, method: str, path: str, **how: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **how)
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"The control plane at {self.url} does not answer ({why}).") from None
        if answer.is_success:
            return answer
        code, detail = _problem(answer)
        if code is not None:
            raise from_code(code, detail)
        if answer.status_code in (502, 503, 504):
            raise Unreachable(f"The control plane at {self.url} is not ready ({detail}).")
        raise SynclineError(f"{method} {self.url}/v1{path} failed: {answer.status_code} {detail}")


def first_alive(services: Iterable[SyncEndpoint], url: str) -> list[SyncEndpoint]:
    """The sync services that can be asked.

    Raises:
        Unreachable: there is none.
    """
    alive = [service for service in services if service.alive]
    if not alive:
        raise Unreachable(
            f"No sync service has announced itself at {url}; "
            f"start one: python -m syncline_sync --control {url}"
        )
    return alive


def _problem(answer: httpx.Response) -> tuple[str | None, str]:
    """(code, detail) of a problem answer; (None, text) for anything else."""
    try:
        body = answer.json()
        return body["code"], body["detail"]
    except (ValueError, KeyError, TypeError):
        return None, answer.text[:200]
