"""A sync service as a process of its own: one run, whose control plane may be away."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from syncline_proto.codec import Float32
from syncline_proto.rest import Member, Membership, RunMembership, RunState
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync.files import SEAL
from syncline_testing.cluster import free_ports
from syncline_testing.processes import environment
from syncline_testing.service import RUN, flat_layout, iter_push

SIZE = 100
LAYOUT = flat_layout(SIZE)

NOBODY = "http://127.0.0.1:9"
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "min_replicas": 2, "codec": {"up": "fp32", "down": "fp32"}}
)


def membership(settings: RunSettings = RULES) -> Membership:
    """What the control plane says: one run, and two replicas in it."""
    members = [Member(replica=r, incarnation=1) for r in ("a", "b")]
    run = RunMembership(
        run=RUN,
        state=RunState.RUNNING,
        settings=settings,
        settings_version=1,
        members=members,
    )
    return Membership(version=1, runs=[run])


class Process:
    """A sync service on free ports; its end is waited for, and what it said is read."""

    def __init__(
        self, data: Path, control: str = NOBODY, stderr: Path | None = None, **flags: object
    ) -> None:
        """``stderr``: a file that what it says goes to; None: it is read."""
        self.port, health, metrics = free_ports(3)
        given = {"port": self.port, "health-port": health, "metrics-port": metrics, **flags}
        command = [sys.executable, "-m", "syncline_sync", "--data", str(data), "--control", control]
        for flag, value in given.items():
            command += [f"--{flag}", *([str(value)] if value != "" else [])]
        with ExitStack() as held:
            said = held.enter_context(stderr.open("w")) if stderr else subprocess.STDOUT
            self._process = subprocess.Popen(
                command, env=environment(), stdout=subprocess.PIPE, stderr=said, text=True
            )
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self.stub: Any = sync_pb2_grpc.SyncServiceStub(self._channel)

    def ready(self, within_s: float = 30.0) -> None:
        grpc.channel_ready_future(self._channel).result(timeout=within_s)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """(exit code, everything it said)."""
        said, _ = self._process.communicate(timeout=30)
        return self._process.returncode, said

    def close(self) -> None:
        self._channel.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def open(self) -> None:
        request = pb.OpenRunRequest(run=RUN, replica="a", incarnation=1, layout=LAYOUT.to_proto())
        self.stub.OpenRun(request, timeout=20)

    def push(self, value: float | Float32, replica: str, **header: Any) -> pb.PushResponse:
        values = np.full(SIZE, value, np.float32)
        usual = {
            "run": RUN, "epoch": 1, "incarnation": 1, "seq": 1, "ranks": 1, "inner_steps": 1,
            "codec": pb.CODEC_FP32, "boxes": [LAYOUT.fragments[0].boxes[0].to_proto()],
            "kind": pb.PUSH_KIND_PSEUDO_GRADIENT,
        }  # fmt: skip
        whole = pb.PushHeader(replica=replica, **{**usual, **header})
        return self.stub.Push(iter(list(iter_push(whole, values))), timeout=20)

    def payload(self, revision: int) -> bytes:
        parts = list(self.stub.Pull(pb.PullRequest(run=RUN, revision=revision), timeout=20))
        return b"".join(p.chunk.data for p in parts[1:])

    def pull(self, revision: int) -> np.ndarray:
        return np.frombuffer(self.payload(revision), np.float32)


@contextmanager
def process(
    data: Path, control: str = NOBODY, stderr: Path | None = None, **flags: object
) -> Iterator[Process]:
    started = Process(data, control, stderr, **flags)
    try:
        yield started
    finally:
        started.close()


def known_run(data: Path, settings: RunSettings = RULES) -> None:
    """The last word of a control plane that is away now."""
    data.mkdir(exist_ok=True)
    (data / "membership.json").write_bytes(SEAL.close(membership(settings).model_dump_json()))


@contextmanager
def at_work(
    data: Path,
    control: str = NOBODY,
    settings: RunSettings = RULES,
    stderr: Path | None = None,
) -> Iterator[Process]:
    """A service that knows the run and has published its first offer."""
    known_run(data, settings)
    with process(data, control, stderr) as p:
        p.ready()
        p.open()
        p.push(1.0, "a", kind=pb.PUSH_KIND_PARAMETERS)
        assert p.pull(0)[0] == 1.0
        yield p


@contextmanager
def control_plane(port: int) -> Iterator[dict[str, list[bytes]]]:
    """A control plane that knows one run; what it was asked, and with which bodies, or query."""
    asked: dict[str, list[bytes]] = {}

    class Control(BaseHTTPRequestHandler):
        def answer(self) -> None:
            said = self.rfile.read(int(self.headers.get("content-length") or 0))
            path, _, query = self.path.partition("?")
            told = query.encode() if self.command == "DELETE" else said
            asked.setdefault(f"{self.command} {path}", []).append(told)
            body = membership().model_dump_json().encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    control = ThreadingHTTPServer(("127.0.0.1", port), Control)
    serving = threading.Thread(target=control.serve_forever)
    serving.start()
    try:
        yield asked
    finally:
        control.shutdown()
        serving.join()
        control.server_close()


def one_sentence(said: str) -> str:
    """The last line, which must be ours, with no traceback before it."""
    assert "Traceback" not in said, said
    last = said.strip().splitlines()[-1]
    assert last.startswith("syncline-sync: ") and last.endswith("."), said
    return last
