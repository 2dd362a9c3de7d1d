"""REST at the control plane, by the standard library: one call, and a lease that is kept.

Written from docs/protocol.md sections 2 and 3.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any

CALL_S = 10.0


class Refused(Exception):
    """A call that was answered with a problem; ``code`` is the page's."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code


class Control:
    """Calls below ``/v1``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON, or None where there is none. Raises: Refused."""
        request = urllib.request.Request(
            f"{self.url}/v1{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with self._opener.open(request, timeout=CALL_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                assert error.headers.get_content_type() == "application/problem+json"
                problem = json.load(error)
            raise Refused(problem["code"], problem["detail"]) from None
        return json.loads(text) if text else None


class Lease:
    """A registration, and the thread that renews it until it is lost or given back."""

    def __init__(self, control: Control, run: str, replica: str, ranks: int) -> None:
        self._control = control
        self._path = f"/runs/{run}/replicas"
        answer = control.call("POST", self._path, {"replica": replica, "ranks": ranks})
        self._path += f"/{replica}"
        self.incarnation: int = answer["incarnation"]
        self.addresses: list[str] = [s["address"] for s in answer["sync_services"]]
        self._heartbeat_s: float = answer["heartbeat_s"]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            try:
                self.renew()
            except Refused as refusal:
                assert refusal.code == "LEASE_LOST"
                return

    def renew(self) -> Any:
        """One heartbeat, and what it tells. Raises: Refused."""
        body = {"incarnation": self.incarnation}
        return self._control.call("POST", f"{self._path}/heartbeat", body)

    def forget(self) -> None:
        """Send no more heartbeats."""
        self._ended.set()
        self._thread.join()

    def leave(self) -> None:
        """Give the lease back."""
        self.forget()
        self._control.call("DELETE", f"{self._path}?incarnation={self.incarnation}")
