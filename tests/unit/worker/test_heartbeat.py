"""The heartbeat's thread tells of its own end: nobody trains on with a lease that nobody renews."""

from __future__ import annotations

import socket
import threading
from typing import cast

import pytest

from syncline import heartbeat
from syncline.control import ControlClient
from syncline.heartbeat import Pulse
from syncline_proto.errors import Unreachable
from syncline_proto.rest import HeartbeatAnswer, Progress, RunState
from syncline_testing.clock import set_by_hand
from syncline_testing.views import registration
from syncline_testing.waiting import wait_until


def beating() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "syncline-heartbeat"]


def test_a_silent_control_plane_does_not_hold_up_who_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heartbeat on its way is left to its thread, and what then befalls it is no fault."""
    monkeypatch.setattr(heartbeat, "CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ControlClient(f"http://127.0.0.1:{server.getsockname()[1]}", None, 60.0)
        pulse = Pulse(client, registration("one"), lambda: Progress(phase="training"))
        pulse.start()
        taken, _ = server.accept()
        with taken:
            pulse.close(tell=True)
            (thread,) = beating()
        thread.join(20)
    assert not beating()
    assert pulse.news.lost is None


def test_a_fault_in_the_heartbeat_counts_as_a_lost_lease() -> None:
    def progress() -> Progress:
        raise ZeroDivisionError("tokens per second")

    pulse = Pulse(ControlClient("http://127.0.0.1:9", None, 1.0), registration("one"), progress)
    pulse.start()
    try:
        wait_until(lambda: pulse.news.lost is not None, 20, "it is lost")
    finally:
        pulse.close(tell=True)
    assert pulse.news.lost == "the heartbeat failed: ZeroDivisionError('tokens per second')"


def test_one_that_is_not_answered_in_time_is_followed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network that is cut for a moment costs no lease: the wait for an answer was the pause."""
    at = set_by_hand(monkeypatch, heartbeat)
    took_s, pauses = iter([0.2, 5.0, 0.5, 0.1]), list[float]()
    me = registration("one")
    answered = HeartbeatAnswer.model_construct(
        settings=me.run.settings, settings_version=1, run_state=RunState.RUNNING, drain=False
    )

    class Line:
        def heartbeat(self, *_: object) -> HeartbeatAnswer:
            took = next(took_s)
            at(heartbeat.time.monotonic() + took)
            if took >= 0.5:
                raise Unreachable("nobody")
            return answered

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            pauses.append(timeout)
            return len(pauses) == 4

    pulse = Pulse(cast(ControlClient, Line()), me, lambda: Progress(phase="training"))
    pulse._stop = Stop()
    pulse._beat()
    every = me.heartbeat_s
    assert pauses == [every, 0.0, pytest.approx(every - 0.5), every]
