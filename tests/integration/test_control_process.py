"""The real process: it says where it listens, streams, and ends when told to."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

END_S = 30.0
"""Half as long as what waits would by itself."""
COMMAND = [sys.executable, "-m", "syncline_control"]


@contextmanager
def control_plane(database: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the process on a free port; yield it and its URL; stop it whatever happens."""
    arguments = ["--port", "0", "--database", str(database), "--log-json"]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = json.loads(process.stderr.readline())
        assert said["event"] == "control_plane.listens"
        yield process, said["url"]
    finally:
        process.kill()
        process.communicate(timeout=10)


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False, timeout=30)


def next_event(lines: Iterator[str]) -> tuple[int, str]:
    """Read a stream up to its next event and return the id and kind."""
    for line in lines:
        if line.startswith("id: "):
            number = int(line.removeprefix("id: "))
            event = json.loads(next(lines).removeprefix("data: "))
            assert event["id"] == number
            return number, event["kind"]
    raise AssertionError("the stream ended")


def test_events_are_streamed_as_they_happen_and_again_from_an_id(tmp_path: Path) -> None:
    with control_plane(tmp_path / "c.db") as (_, url), client_of(url) as api:
        with api.stream("GET", "/v1/events/stream") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            next(lines)
            api.post("/v1/runs", json={"name": "r"})
            first, kind = next_event(lines)
            assert kind == "run.created"
            api.post("/v1/runs/r/pause")
            assert next_event(lines) == (first + 1, "run.paused")
        resumed = {"Last-Event-ID": str(first)}
        with api.stream("GET", "/v1/events/stream?run=r", headers=resumed) as stream:
            assert next_event(stream.iter_lines()) == (first + 1, "run.paused")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_ends_soon_although_others_wait(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with control_plane(tmp_path / "c.db") as (process, url), client_of(url) as api:
        waiting = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        with closing(waiting), api.stream("GET", "/v1/events/stream") as stream:
            lines = stream.iter_lines()
            next(lines)
            waiting.request("GET", "/v1/membership")
            known = json.load(waiting.getresponse())
            waiting.request("GET", f"/v1/membership?after={known['version']}&wait_s=60")
            # It was sent before this call, so it is being waited upon when this one is answered.
            assert api.get("/healthz").status_code == 200
            process.send_signal(number)
            assert process.wait(END_S) == code
            assert json.load(waiting.getresponse()) == known
            assert not any(line.startswith("data") for line in lines)


def test_a_kill_and_a_restart_keep_runs_and_numbers(tmp_path: Path) -> None:
    for life in (1, 2):
        with control_plane(tmp_path / "c.db") as (process, url), client_of(url) as api:
            assert api.post("/v1/runs", json={"name": "r"}).status_code == (
                201 if life == 1 else 200
            )
            if life == 2:
                beat = api.post("/v1/runs/r/replicas/a/heartbeat", json={"incarnation": 1})
                assert beat.status_code == 200
            registered = api.post("/v1/runs/r/replicas", json={"replica": "a"})
            assert registered.json()["incarnation"] == life
            process.kill()
            process.wait(10)


def test_leases_run_out_while_it_serves(tmp_path: Path) -> None:
    with control_plane(tmp_path / "c.db") as (_, url), client_of(url) as api:
        settings = {"timeouts": {"lease": 0.5}}
        api.post("/v1/runs", json={"name": "r", "settings": settings})
        api.post("/v1/runs/r/replicas", json={"replica": "a"})
        known = api.get("/v1/membership").json()
        assert known["runs"][0]["members"]
        asked = {"after": known["version"], "wait_s": 20}
        assert api.get("/v1/membership", params=asked).json()["runs"][0]["members"] == []


def fails(arguments: list[str]) -> tuple[int, str]:
    """Run it to its end and return the exit code and what it said."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=30)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip()


def test_a_port_in_use_is_said_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        database = str(tmp_path / "c.db")
        code, said = fails(["--port", str(port), "--database", database])
    assert code == 11
    assert len(said.splitlines()) == 1 and f"port {port}" in said
    assert "--port" in said and "SYNCLINE_CONTROL_PORT" in said


def test_help_shows_examples_the_environment_and_exit_codes() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stdout.isascii()
    for part in ("Examples:", "Environment", "SYNCLINE_CONTROL_HOST", "Exit codes", "8500"):
        assert part in done.stdout


def test_a_database_file_has_one_control_plane(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    with control_plane(database):
        for second in (str(database), f"sqlite:///{database}"):
            code, said = fails(["--port", "0", "--database", second])
            assert code == 10
            assert len(said.splitlines()) == 1 and "--database" in said
    with control_plane(database) as (_, url), client_of(url) as api:
        assert api.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--host", "0.0.0.0"], 10, "--insecure"),
        (["--port", "99999"], 10, "port"),
        (["--port", "0", "--database", "/"], 10, "folder"),
    ],
)
def test_a_wrong_setting_is_said_in_one_sentence(
    arguments: list[str], code: int, says: str
) -> None:
    returned, said = fails(arguments)
    assert returned == code
    assert len(said.splitlines()) == 1 and says in said
