"""More connections than the process may have: those that are here go on, and the log is short."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from syncline_control import descriptors
from syncline_control.descriptors import Share, Shortage
from syncline_testing.cluster import Cluster

IDLE = 400
ACCEPT = "socket.accept() out of system resource"


def idle(stack: ExitStack, cluster: Cluster) -> list[socket.socket]:
    """Connections that say nothing; some may have been sent away already."""
    host, _, port = cluster.control_url.removeprefix("http://").partition(":")
    return [
        stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        for _ in range(IDLE)
    ]


@pytest.mark.long
def test_idle_connections_take_nothing_from_those_who_are_here(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.control.limit("ulimit -n 256")
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.control.start()
        with httpx.Client(base_url=cluster.control_url, trust_env=False, timeout=30) as here:
            assert here.get("/healthz").is_success
            last = idle(stack, cluster)[-1]
            assert last.recv(100).startswith(b"HTTP/1.1 503 "), "the newest was sent away"
            for number in range(20):
                made = here.post("/v1/runs", json={"name": f"r{number}"})
                assert made.status_code == 201, made.text
    log = (tmp_path / "control.log").read_text()
    assert "Traceback" not in log and len(log.splitlines()) < 10, log[:2000]


def test_it_gives_itself_as_many_as_it_may(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.control.limit("ulimit -Sn 256")
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.control.start()
        idle(stack, cluster)
        assert httpx.get(f"{cluster.control_url}/healthz", trust_env=False, timeout=30).is_success


def test_a_part_is_kept_for_the_database_and_the_page() -> None:
    for there in (64, 256, 1024, 4096, 1 << 20):
        share = Share.of(there)
        assert share.backlog > 1 and share.connections + share.backlog <= 3 * there // 4
    assert Share.of(1 << 20) == Share(
        connections=descriptors.CONNECTIONS_MAX, backlog=descriptors.BACKLOG_MAX
    )


def test_a_shortage_is_one_line_and_anything_else_is_asyncios(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = list[dict[str, Any]]()

    async def fail() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "default_exception_handler", others.append)
        loop.set_exception_handler(Shortage())
        for number in (errno.EMFILE, errno.ENFILE, errno.EMFILE, errno.EIO):
            error = OSError(number, "no luck")
            loop.call_exception_handler({"message": ACCEPT, "exception": error})
        loop.call_exception_handler({"message": "a task was forgotten"})

    with capture_logs() as said:
        asyncio.run(fail())
    assert [line["event"] for line in said] == ["control_plane.no_descriptors"]
    assert "ulimit -n" in said[0]["advice"]
    assert [one["message"] for one in others] == [ACCEPT, "a task was forgotten"]
