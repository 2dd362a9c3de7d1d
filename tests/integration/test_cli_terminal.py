"""Ctrl+C on the terminal of ``syncline up``: it ends tidily, and leaves the terminal as it was."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syncline_testing.processes import alive, of_module
from syncline_testing.terminal import CTRL_C, HIDE, SHOW, Terminal, on_terminal
from syncline_testing.training import tiny_job, to_toml

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.timeout(240),
]

ENDLESS = 1_000_000_000
STOPPING = "Stopping: replicas push what they did and leave (Ctrl+C again kills)."
LAST_WORDS = "control_plane.ended"
"""The control plane's, where it was asked to end and not killed."""


@contextmanager
def training(data: Path, folder: Path) -> Iterator[Terminal]:
    """``syncline up`` with one replica, which has had a round; ``folder`` is the launch's."""
    job = folder.parent / "job.toml"
    run = {"sync_every": 2, "timeouts": {"lease": 5.0}}
    job.write_text(to_toml(tiny_job(data, steps=ENDLESS, run=run)))
    out = str(folder.parent)
    with on_terminal("up", str(job), "--replicas", "1", "--out", out) as terminal:
        told = folder / "logs" / "replica-0.out"
        terminal.until(
            lambda: told.exists() and '"revision": 2' in told.read_text(), "a round is over"
        )
        terminal.sees(HIDE)  # the live picture is up
        yield terminal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tiny"


def has_ended_tidily(terminal: Terminal, before: list[object], folder: Path) -> bool:
    """With 130 and one sentence, the terminal as it was ``before``, and nobody left."""
    assert terminal.exit_code() == 130, terminal.screen
    assert terminal.settings() == before
    _, stopping, last = terminal.screen.partition(STOPPING)
    # The terminal echoes the key, wherever it is pressed.
    assert stopping and last.replace("^C", "").split("\r\n") == [
        "",
        f"Stopped; what was done is in {folder}. The same command goes on.",
        "",
    ], terminal.screen
    assert terminal.screen.rindex(SHOW) > terminal.screen.rindex(HIDE), "the cursor is back"
    return not alive(folder.parent)


@pytest.mark.long
def test_ctrl_c_lets_the_replica_push_and_restores_the_terminal(data: Path, folder: Path) -> None:
    with training(data, folder) as terminal:
        before = terminal.settings()
        terminal.presses(CTRL_C)
        assert has_ended_tidily(terminal, before, folder)
    last = json.loads((folder / "logs" / "replica-0.out").read_text().splitlines()[-1])
    assert (last["event"], last["reason"]) == ("end", "drained")
    assert LAST_WORDS in (folder / "logs" / "control.log").read_text()


@pytest.mark.long
def test_ctrl_c_again_waits_for_nobody(data: Path, folder: Path) -> None:
    """The replica stands still: it would be waited for, and then the services be asked to end."""
    with training(data, folder) as terminal:
        before = terminal.settings()
        (replica,) = of_module(folder, "syncline.train")
        os.kill(replica, signal.SIGSTOP)
        terminal.presses(CTRL_C)
        terminal.sees(STOPPING)
        terminal.presses(CTRL_C)
        assert has_ended_tidily(terminal, before, folder)
    assert LAST_WORDS not in (folder / "logs" / "control.log").read_text()
