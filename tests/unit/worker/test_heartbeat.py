"""The heartbeat's thread tells of its own end: nobody trains on with a lease that nobody renews."""

from __future__ import annotations

import socket
import threading

import pytest

from syncline import heartbeat
from syncline.control import ControlClient
from syncline.heartbeat import Pulse
from syncline_proto.rest import Progress
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
