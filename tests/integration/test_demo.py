"""Whole runs on this machine through one command: to the end, stopped, gone on with, refused.

A launch trains for a second; the rest is processes that import PyTorch, and there are as few of
those as each proof allows.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from syncline.cli.app import run
from syncline.cli.up import DEMO_PROMPT
from syncline.launch.client import OperatorClient
from syncline_testing.launches import (
    ENDLESS,
    ONE,
    TOO_LONG,
    WAIT_S,
    holds_text,
    small_job,
    syncline,
)
from syncline_testing.processes import alive, of_module
from syncline_testing.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "demo.py"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_job(tmp_path_factory.mktemp("job"))


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_small_job_trains_and_exports(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with syncline("up", str(job), "--out", str(tmp_path), "--json") as started:
        out, err = started.communicate(timeout=WAIT_S * 2)
        assert started.returncode == 0, err
    told = json.loads(out)
    assert told["failed"] == []
    assert set(told["replicas"]) == {"replica-0", "replica-1"}
    assert told["tokens"] >= 40_960
    assert told["bits_per_byte_end"] < told["bits_per_byte_start"] - 1.0
    for end in told["replicas"].values():
        assert end["reason"] == "budget"
        assert end["held_out_merged"] == pytest.approx(told["held_out_merged"], rel=1e-6)
        assert end["held_out_local"] is not None
    # The synchronous phase ends with a revision that no outer step made.
    assert told["rounds"] == told["revision"] - 1 > 2
    assert told["synchronous_steps"] == 2
    assert told["page"] is None
    assert told["sample"] is None, "it was not asked to write"
    folder = tmp_path / "small"
    assert {"logs", "store", "control.db", "export"} <= {path.name for path in folder.iterdir()}
    assert told["export"] == str(folder / "export")
    assert (folder / "export" / "config.json").exists()
    for log in (folder / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()
    assert "Traceback" not in err
    assert not alive(tmp_path)
    assert run(["up", str(job), "--out", str(tmp_path)]) == 16
    err = capfd.readouterr().err
    assert "finished" in err and "run.name" in err


@pytest.mark.timeout(240)
def test_the_demo_ends_with_its_figures_page_export_and_a_sample(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a smaller model and less text; all else is the demo's own."""
    monkeypatch.setenv("COLUMNS", "200")
    smaller = [
        f'data.source=["{job.with_name("text.txt")}"]',
        *("run.token_budget=40_960", "run.warmup_steps=4", "optimizer.warmup_tokens=0"),
        *("model.config.hidden_size=32", "model.config.intermediate_size=64"),
    ]
    flags = [word for pair in smaller for word in ("--set", pair)]
    with syncline("demo", "--out", str(tmp_path), *flags) as started:
        out, err = started.communicate(timeout=WAIT_S * 2)
    assert started.returncode == 0, err
    (folder,) = tmp_path.iterdir()
    ended, _, sample = out.partition("A sample of the merged model:\n")
    begins = "The live page is at "
    page = next(line for line in out.splitlines() if line.startswith(begins)).removeprefix(begins)
    told = [line.strip().split(maxsplit=1) for line in ended.splitlines() if line.strip()]
    assert ["page", f"{page} (gone with the services; --keep keeps them)"] in told
    assert ["model", str(folder / "export")] in told
    evaluated = {name for name, rest in told[-20:] if rest[:1].isdecimal()}
    assert {"replica-0", "replica-1", "merged"} <= evaluated
    assert sample.startswith(DEMO_PROMPT) and len(sample) > 20
    assert (folder / "export" / "config.json").exists()
    assert not alive(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_same_command_goes_on_however_it_was_ended(job: Path, tmp_path: Path) -> None:
    """Ctrl+C half way; each process killed in turn, then kill -9 of all at once; to the end."""
    longer = ("--set", "run.token_budget=327_680", "--restarts", "1", "--out", str(tmp_path))
    told = tmp_path / "small" / "logs" / "replica-0.out"
    lives: list[list[dict[str, Any]]] = []
    for sign in (signal.SIGINT, signal.SIGKILL, None):
        before = len(spoken(told))
        with syncline("up", str(job), *longer, "--json") as started:
            if sign is not None:
                wait_for_rounds(told, before, 3)
            if sign == signal.SIGKILL:
                kill_each(tmp_path, told, before)
            if sign is not None:
                started.send_signal(sign)
            out, err = started.communicate(timeout=WAIT_S * 2)
            code = {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL, None: 0}[sign]
            assert started.returncode == code, err
            for name in SERVANTS if sign == signal.SIGKILL else ():
                killed = f"{name} ended with exit code 137 (killed by SIGKILL: the system may have "
                assert f"{killed}run out of memory); starting it again." in err
            wait_until(lambda: not alive(tmp_path), WAIT_S, "all are gone", lambda: alive(tmp_path))
        lives.append(spoken(told)[before:])
    ends = json.loads(out)
    assert ends["failed"] == [] and ends["tokens"] >= 327_680
    steps = [[one for one in life if one["event"] == "progress"] for life in lives]
    for earlier, later in pairwise(steps):
        # What a replica said last it may have said before its round was committed.
        assert later[0]["revision"] >= earlier[-1]["revision"] > earlier[0]["revision"]
        assert later[0]["tokens"] > earlier[0]["tokens"]
    starts = [life[0]["held_out_loss"] for life in lives]
    assert starts == sorted(starts, reverse=True) and starts[2] < starts[0] - 0.5


SERVANTS = {
    "replica-1": ("syncline.train", "replica-1"),
    "sync": ("syncline_sync",),
    "control": ("syncline_control",),
}
"""Processes of a launch that come back when they are killed, and how each is known."""


def kill_each(folder: Path, told: Path, before: int) -> None:
    """One after the other; each is back, and the survivor a round further, before the next."""
    for name, known_by in SERVANTS.items():
        (victim,) = of_module(folder, *known_by)

        def is_back(gone: int = victim, known_by: tuple[str, ...] = known_by) -> bool:
            there = of_module(folder, *known_by)
            return bool(there) and gone not in there

        os.kill(victim, signal.SIGKILL)
        wait_until(is_back, WAIT_S, f"{name} is back")
        wait_for_rounds(told, before, 2)


def wait_for_rounds(told: Path, since: int, rounds: int) -> None:
    """Until the replica tells of that many more than at its first or latest word."""

    def revisions() -> list[int]:
        return [one["revision"] for one in spoken(told)[since:] if one["event"] == "progress"]

    wait_until(lambda: bool(revisions()), WAIT_S, "the replica tells of a round")
    wanted = revisions()[-1] + rounds
    wait_until(lambda: revisions()[-1] >= wanted, WAIT_S, f"revision {wanted}", revisions)


def spoken(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a replica's output."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_stopped_run_has_a_merged_model_and_is_kept_until_ctrl_c(
    job: Path, tmp_path: Path
) -> None:
    kept = (*ONE, *ENDLESS, "--out", str(tmp_path), "--keep", "--json")
    with syncline("up", str(job), *kept) as started:
        assert started.stderr is not None
        begins = "The live page is at "
        page = next(line for line in started.stderr if line.startswith(begins))
        page = page.removeprefix(begins).strip()
        replica = tmp_path / "small" / "logs" / "replica-0.out"
        wait_until(lambda: holds_text(replica, '"revision": 3'), WAIT_S, "revision 3")
        with OperatorClient(page) as client:
            client.move_run("small", "stop")
            assert any("stays at" in line for line in started.stderr)
            assert client.ready()
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=WAIT_S)
    assert started.returncode == 0, err
    told = json.loads(out)
    assert told["page"] == page
    assert told["bits_per_byte_end"] < told["bits_per_byte_start"]
    assert (tmp_path / "small" / "export" / "config.json").exists()
    assert {end["reason"] for end in told["replicas"].values()} == {"stopped"}
    assert not alive(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_benchmark_ends_in_one_line_of_seven_keys(job: Path, tmp_path: Path) -> None:
    cache, exported = tmp_path / "data", tmp_path / "model"
    argv = [sys.executable, str(BENCHMARK), "--job", str(job)]
    for pair in (
        "up.replicas=1",
        "run.min_replicas=1",
        "run.token_budget=8_192",
        f"data.cache={cache}",
        f"export.folder={exported}",
    ):
        argv += ["--set", pair]
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    figures = ["bits_per_byte_start", "bits_per_byte_end", "seconds", "tokens_per_second"]
    assert list(told) == [*figures, "replicas", "rounds", "exposed_sync_share"]
    assert told["replicas"] == 1 and told["rounds"] > 0
    assert told["bits_per_byte_end"] < told["bits_per_byte_start"]
    # The whole command: from before the data is prepared until the model is exported.
    (data,) = cache.glob("*/manifest.json")
    worked = (exported / "config.json").stat().st_mtime - data.stat().st_mtime
    assert 0 < worked <= told["seconds"] <= seconds


@pytest.mark.long
def test_a_replica_that_cannot_start_ends_the_launch_with_its_own_code(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", str(job), *ONE, *TOO_LONG, "--out", str(tmp_path)]) == 13
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("error: replica-") and "logs" in said
    assert "Traceback" not in said
    assert not alive(tmp_path)


def test_wrong_inputs_end_before_anything_starts(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wrong = {
            11: ["--set", f"up.control_port={port}"],
            10: ["--set", "run.nonsense=1"],
        }
        for code, flags in wrong.items():
            assert run(["up", str(job), "--out", str(tmp_path), *flags]) == code
            said = capfd.readouterr().err
            assert said.startswith("error: ") and said.count("\n") == 1
    for unfit in ("data.sequence_length=100_000", "model.config.hidden_act=nosuch"):
        assert run(["up", str(job), "--out", str(tmp_path), "--set", unfit]) == 10
        said = capfd.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1
    assert not list(tmp_path.glob("*/logs"))
