"""Opening a run while the control plane is slow or away, and being called off meanwhile."""

from __future__ import annotations

import threading

import pytest
from pydantic import TypeAdapter
from structlog.testing import capture_logs

from syncline import outage
from syncline.join import open_run
from syncline.ranks import Ranks
from syncline.recall import Recall
from syncline.wish import Wish
from syncline_proto.errors import CalledOff
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.rest import SyncEndpoint
from syncline_testing.cluster import free_ports
from syncline_testing.plane import control
from syncline_testing.views import registration
from syncline_testing.waiting import wait_until

LAYOUT = Layout((TensorSpec("t", (2,), "float32"),), (FragmentSpec("f", (Box(0, (0,), (2,)),)),))


def opened(address: str, recall: Recall) -> None:
    wish = Wish(
        control=address,
        token=None,
        run="run",
        replica="one",
        settings=None,
        job={},
        check_job=lambda run, job: None,
    )
    open_run(wish, registration("one"), Ranks(), LAYOUT, recall)


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_who_is_called_off_opens_no_link_when_the_answer_comes_at_last() -> None:
    recall, may_answer = Recall(), threading.Event()
    (port,) = free_ports(1)
    service = SyncEndpoint(name="sync-0", address=f"127.0.0.1:{port}", alive=True)
    told = TypeAdapter(list[SyncEndpoint]).dump_json([service])
    others = threads("syncline-watch")

    def answer() -> bytes:
        recall.set()
        may_answer.wait(60)
        return told

    with control(answer) as address:
        with pytest.raises(CalledOff):
            opened(address, recall)
        (left,) = threads("syncline-asking")
        may_answer.set()
        left.join(20)
        assert not left.is_alive()
    assert threads("syncline-watch") == others, "a link was opened that nobody closes"


def test_a_control_plane_that_is_away_is_not_taken_for_a_sync_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outage, "SAY_AFTER_S", 0.2)
    recall = Recall()
    (port,) = free_ports(1)

    def call_off() -> None:
        wait_until(lambda: bool(logs), 20, "it is said")
        recall.set()

    with capture_logs() as logs:
        calling = threading.Thread(target=call_off)
        calling.start()
        with pytest.raises(CalledOff):
            opened(f"http://127.0.0.1:{port}", recall)
        calling.join()
    assert [log["event"] for log in logs] == ["control.away"]


def test_a_control_plane_without_a_sync_service_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "SAY_AFTER_S", 0.2)
    recall = Recall()

    def call_off() -> None:
        wait_until(lambda: bool(logs), 20, "it is said")
        recall.set()

    with control(lambda: b"[]") as address, capture_logs() as logs:
        calling = threading.Thread(target=call_off)
        calling.start()
        with pytest.raises(CalledOff):
            opened(address, recall)
        calling.join()
    assert [log["event"] for log in logs] == ["sync.away"]
