"""Ctrl+C, or a kill, at each moment of a launch: no process is left, and what is said is true."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from syncline_testing.launches import (
    ENDLESS,
    ONE,
    SHORT,
    TOO_LONG,
    WAIT_S,
    holds_text,
    small_job,
    syncline,
)
from syncline_testing.processes import alive, of_module, python
from syncline_testing.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_job(tmp_path_factory.mktemp("job"))


def goes_on(sentences: tuple[str, str]) -> tuple[str, str]:
    return sentences[0], f"{sentences[1]} The same command goes on."


LONG_LOOK = ("--set", "evaluate.sequences=1_000_000", "--set", "data.held_out_fraction=0.9")
MOMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "as it writes": ((*SHORT, "--prompt", "the "), "Loading the export"),
    "as the model is exported": (SHORT, "Exporting the merged model"),
    "as they evaluate": ((*ONE, *ENDLESS, *LONG_LOOK), "an evaluation"),
    "as the replicas load": ((*ONE, *ENDLESS), "loading PyTorch"),
    "as data is prepared": ((*ENDLESS, "--set", "data.tokenizer=bpe:600"), "Preparing the data"),
    "as the services start": (ENDLESS, "Starting the control plane"),
    "as the model is checked": (ENDLESS, "Checking the model"),
}
"""Each with the words on standard error that announce it; an evaluation has none."""
NOTHING = ("Stopping.", "Stopped before anything was started.")
SERVICES = ("Stopping the services (Ctrl+C again kills).", "Stopped; what was done is in {folder}.")
REPLICAS = ("Stopping: replicas push what they did and leave (Ctrl+C again kills).", SERVICES[1])
LAST_WORDS = {
    "Loading the export": [SERVICES],
    "Exporting the merged model": [SERVICES],
    "an evaluation": [goes_on(REPLICAS)],
    "loading PyTorch": [goes_on(SERVICES), goes_on(REPLICAS)],  # one may have been started, or none
    "Preparing the data": [goes_on(SERVICES)],
    "Starting the control plane": [NOTHING, goes_on(SERVICES)],
    "Checking the model": [NOTHING],
}
"""The two sentences that standard error may end with then."""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_ctrl_c_leaves_no_process_behind(job: Path, tmp_path: Path) -> None:
    """Two moments at a time: a launch is seldom busy on more than one core."""
    with ThreadPoolExecutor(2) as pool:
        ended = {
            moment: pool.submit(interrupt, job, tmp_path / moment.replace(" ", "-"), *what)
            for moment, what in MOMENTS.items()
        }
    failed = {moment: one.exception() for moment, one in ended.items() if one.exception()}
    assert not failed


def interrupt(job: Path, folder: Path, flags: tuple[str, ...], words: str) -> None:
    line = ("up", str(job), *flags, "--out", str(folder), "--json")
    # Who has loaded PyTorch has checked a model before it is interrupted.
    cold = words == "Checking the model"
    with python("-m", "syncline.cli", *line) if cold else syncline(*line) as started:
        assert started.stderr is not None
        if words == "an evaluation":
            # It has joined, and tells nothing before its first look at the held-out text is over.
            logs = folder / "small" / "logs"
            joined = logs / "replica-0.log", "replica.joined"
            wait_until(lambda: holds_text(*joined), WAIT_S, "it has joined")
            assert not holds_text(logs / "replica-0.out", "start")
        else:
            assert any(words in line for line in started.stderr)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=WAIT_S)
        assert started.returncode == 130, err
        assert "Traceback" not in err
        said = "\n".join(err.splitlines()[-2:]).replace(str(folder / "small"), "{folder}")
        assert tuple(said.split("\n")) in LAST_WORDS[words], err
        assert not alive(folder)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("flags", "words", "code"),
    [
        ((*SHORT, "--prompt", "the "), "Loading the export", 0),
        ((*ONE, *TOO_LONG), "Starting 1 replica;", 13),
    ],
)
def test_ctrl_c_as_the_services_end_hurries_them_and_the_end_stays_what_it_was(
    job: Path, tmp_path: Path, flags: tuple[str, ...], words: str, code: int
) -> None:
    """The sync service stands still, so that it has to be waited for once it is asked to end."""
    with syncline("up", str(job), *flags, "--out", str(tmp_path), "--json") as started:
        assert started.stderr is not None
        assert any(words in line for line in started.stderr)
        (service,) = of_module(tmp_path, "syncline_sync")
        os.kill(service, signal.SIGSTOP)
        wait_until(lambda: is_asked_to_end(service), WAIT_S, "it is asked to end")
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=WAIT_S)
    assert started.returncode == code, err
    assert "Stopp" not in err and "Traceback" not in err
    if code == 0:
        sample = json.loads(out)["sample"]
        assert sample.startswith("the ") and len(sample) > 20
    else:
        assert "error: replica-" in err
    assert "control_plane.ended" not in (tmp_path / "small" / "logs" / "control.log").read_text()
    assert not alive(tmp_path)


def is_asked_to_end(pid: int) -> bool:
    """Whether a process that stands still has got SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_ctrl_c_at_once_leaves_no_process_behind(job: Path, tmp_path: Path) -> None:
    """So early that Python may not know yet what to do with it."""
    with python("-m", "syncline.cli", "up", str(job), *ENDLESS, "--out", str(tmp_path)) as started:
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=WAIT_S)
        assert not alive(tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "sign", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)]
)
def test_the_demo_leaves_no_process_behind(tmp_path: Path, sign: signal.Signals) -> None:
    with syncline("demo", "--out", str(tmp_path)) as started:
        logs = "*/logs/replica-1.log"
        wait_until(lambda: bool(list(tmp_path.glob(logs))), WAIT_S, "replica-1 is started")
        started.send_signal(sign)
        started.communicate(timeout=WAIT_S)
        wait_until(lambda: not alive(tmp_path), WAIT_S, "all are gone", lambda: alive(tmp_path))
