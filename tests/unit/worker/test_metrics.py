"""What a replica tells Prometheus, and where it cannot."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import httpx
import pytest
import torch

from syncline import Replica
from syncline.launch.commands import metrics_port
from syncline.metrics import serve
from syncline_proto import exporter
from syncline_proto.errors import ConfigError, PortInUse
from syncline_testing.cluster import free_ports
from syncline_testing.replicas import STEP_TOKENS, Trial
from syncline_testing.scraped import scraped

COUNTED = {
    "inner_step": "inner_steps_total",
    "tokens": "tokens_total",
    "rounds": "rounds_total",
    "exposed_s": "exposed_sync_seconds_total",
    "hook_s": "hook_seconds_total",
    "paused_s": "paused_seconds_total",
    "stale": "stale_pushes_total",
    "aged": "aged_pushes_total",
    "last_age": "last_age",
    "anomalous": "anomalous_pushes_total",
}
"""What a replica counts, as Prometheus reads it."""


def test_the_figures_of_a_loop_are_there_when_somebody_asks() -> None:
    (port,) = free_ports(1)
    trial = Trial(None, "any", 0)
    with serve(trial.replica, port), trial.replica:
        before = scraped(port)
        assert before["tokens_total"] == before["inner_steps_total"] == 0
        assert "loss" not in before, "nobody has told one"
        trial.step(3)
        trial.replica.report(grad_norm=torch.tensor(0.5), lr=1e-3, mfu=0.25)
        trial.replica.report(loss=float("nan"))
        found = scraped(port)
        assert httpx.get(f"http://127.0.0.1:{port}/other", trust_env=False).status_code == 404
    assert found["tokens_total"] == found["run_tokens"] == 3 * STEP_TOKENS
    assert (found["inner_steps_total"], found["revision"], found["rounds_total"]) == (3, 0, 0)
    assert (found["grad_norm"], found["inner_lr"], found["mfu_ratio"]) == (0.5, 1e-3, 0.25)
    assert found["loss"] == trial.replica.reported["loss"] > 0
    assert found["bytes_totalup"] == found["bytes_totaldown"] == found["stale_pushes_total"] == 0
    assert found["exposed_sync_seconds_total"] == found["paused_seconds_total"] == 0
    with pytest.raises(httpx.ConnectError):
        scraped(port)


def test_all_that_was_counted_is_told_under_its_own_name() -> None:
    (port,) = free_ports(1)
    trial = Trial(None, "any", 0)
    with trial.replica, serve(trial.replica, port):
        tally = trial.replica._session.tally
        for number, name in enumerate(COUNTED, 1):
            setattr(tally, name, number)
        found = scraped(port)
    assert {name: found[told] for name, told in COUNTED.items()} == {
        name: number for number, name in enumerate(COUNTED, 1)
    }


def test_who_connects_and_says_nothing_is_closed_and_the_next_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter, "REQUEST_S", 0.5)
    monkeypatch.setattr(exporter, "REQUESTS_MAX", 2)
    (port,) = free_ports(1)
    with serve(Trial(None, "any", 0).replica, port), ExitStack() as open_:
        where = ("127.0.0.1", port)
        # One more than there are threads for: closed at once, or none left for who asks.
        silent = [open_.enter_context(socket.create_connection(where, 20)) for _ in range(3)]
        assert [one.recv(1) for one in silent] == [b""] * 3
        assert scraped(port)["tokens_total"] == 0


def test_who_never_comes_to_the_end_of_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "REQUEST_S", 0.5)
    (port,) = free_ports(1)
    with (
        serve(Trial(None, "any", 0).replica, port),
        socket.create_connection(("127.0.0.1", port)) as dripping,
        pytest.raises(ConnectionError),
    ):
        dripping.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        for _ in range(300):
            dripping.sendall(b"a")
            time.sleep(0.05)


def test_a_port_that_cannot_be_had_is_told_in_a_sentence() -> None:
    replica = Trial(None, "any", 0).replica
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"listens on 127.0.0.1 port {port}; .* with port="):
            serve(replica, port).__enter__()
    with pytest.raises(ConfigError, match="Cannot serve metrics on 192.0.2.1 port"):
        serve(replica, 9103, "192.0.2.1").__enter__()


def test_rank_0_alone_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    (port,) = free_ports(1)
    with serve(Trial(None, "any", 0).replica, port), pytest.raises(httpx.ConnectError):
        scraped(port)


def test_replicas_of_one_machine_get_ports_of_their_own() -> None:
    assert metrics_port(1, 0) == []
    assert [metrics_port(place, 9103) for place in (0, 1)] == [
        ["log.metrics_port=9103"],
        ["log.metrics_port=9104"],
    ]
    assert metrics_port(1, 65534) == ["log.metrics_port=65535"]
    with pytest.raises(ConfigError, match="metrics_port 65535 leaves no room for 2 replicas"):
        metrics_port(1, 65535)


def test_heartbeats_carry_only_what_they_have_a_place_for() -> None:
    replica: Replica = Trial(None, "any", 0).replica
    replica.report(loss=1.0, mfu=0.5)
    assert replica._progress().loss == 1.0
