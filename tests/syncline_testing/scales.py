"""A cluster in this process: it speaks the scale subresource and nothing else of Kubernetes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

PATH = re.compile(r"/apis/apps/v1/namespaces/([^/]+)/(statefulsets|deployments)/([^/]+)/scale")


@dataclass
class Cluster:
    """The workloads of a cluster, by kind and name, in the namespace ``syncline``."""

    replicas: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Verb, path, and content type of each."""
    refuses: int = 0
    """The status of every answer; 0: it answers."""
    instead: bytes | None = None
    """The body of every answer that is none of its own: of a proxy before it."""

    hangs_up: bool = False
    """Nobody is answered."""

    def answer(self, verb: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        found = PATH.fullmatch(path.partition("?")[0])
        if self.refuses:
            return self.refuses, {"kind": "Status", "status": "Failure", "code": self.refuses}
        key = (found[2], found[3]) if found else ("", "")
        if found is None or found[1] != "syncline" or key not in self.replicas:
            return 404, {"kind": "Status", "status": "Failure", "code": 404}
        if verb == "PATCH":
            self.replicas[key] = body["spec"]["replicas"]
        # As the API server has it: a number that is 0 is left out.
        spec = {"replicas": self.replicas[key]} if self.replicas[key] else {}
        return 200, {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": key[1], "namespace": "syncline"},
            "spec": spec,
            "status": {"replicas": self.replicas[key], "selector": "app=x"},
        }


@contextmanager
def cluster_at_hand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Inside, the kubeconfig at hand, which lies in ``folder``, names this cluster."""
    made = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or "null")
            kind = self.headers.get("content-type") or ""
            made.calls.append((self.command, self.path, kind))
            if made.hangs_up:
                self.close_connection = True
                return
            status, told = made.answer(self.command, self.path, body)
            text = json.dumps(told).encode() if made.instead is None else made.instead
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_PATCH = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
