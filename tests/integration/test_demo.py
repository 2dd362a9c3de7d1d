"""Whole runs on this machine through one command: a small one to its end, and Ctrl+C on the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syncline.cli.app import run
from syncline.launch.client import OperatorClient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WAIT_S = 90.0
JOB = """
[run]
name = "small"
token_budget = 40_960
sync_every = 5
warmup_steps = 2
min_replicas = 2
[run.timeouts]
lease = 2.0
round_deadline = 10.0
[model.config]
model_type = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
tie_word_embeddings = true
[data]
source = ["{text}"]
cache = "{cache}"
sequence_length = 64
[train]
micro_batch = 8
threads = 1
[optimizer]
lr = 1e-2
schedule = "cosine"
[evaluate]
sequences = 16
[log]
every_steps = 2
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 4000)
    path = folder / "job.toml"
    path.write_text(JOB.format(text=text, cache=folder / "data"))
    return path


@contextmanager
def syncline(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command line; end it, if need be, so that its lifelines are cut."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("SYNCLINE_TOKEN", None)
    with subprocess.Popen(
        [sys.executable, "-m", "syncline.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def alive(mark: Path) -> list[int]:
    """The processes that have ``mark`` in their command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(mark) in line:
                found.append(int(entry.name))
    return found


def until(holds: Callable[[], bool], within_s: float = WAIT_S) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def holds_text(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


@pytest.mark.timeout(180)
def test_a_small_job_trains_exports_and_writes(job: Path, tmp_path: Path) -> None:
    with syncline("up", str(job), "--out", str(tmp_path), "--prompt", "the ", "--json") as started:
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
    assert told["sample"].startswith("the ") and len(told["sample"]) > 20
    folder = tmp_path / "small"
    assert {"logs", "store", "control.db", "export"} <= {path.name for path in folder.iterdir()}
    assert (folder / "export" / "config.json").exists()
    for log in (folder / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()
    assert "Traceback" not in err
    assert not alive(tmp_path)
    with syncline("up", str(job), "--out", str(tmp_path)) as again:
        _, err = again.communicate(timeout=WAIT_S)
    assert again.returncode == 16, err
    assert "finished" in err and "run.name" in err


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "at once": lambda logs: True,
    "while the services start": lambda logs: (logs / "control.log").exists(),
    "while the replicas load": lambda logs: (logs / "replica-0.log").exists(),
    "while they train": lambda logs: holds_text(logs / "replica-1.out", '"progress"'),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_leaves_no_process_behind(job: Path, tmp_path: Path, moment: str) -> None:
    endless = ("--set", "run.token_budget=1_000_000_000", "--out", str(tmp_path))
    with syncline("up", str(job), *endless) as started:
        logs = tmp_path / "small" / "logs"
        assert until(lambda: MOMENTS[moment](logs) or started.poll() is not None)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=WAIT_S)
        # At once, the signal may come before Python knows what to do with it.
        if moment != "at once":
            assert started.returncode == 130, err
            assert "Traceback" not in err
            assert "Stopping: " in err and "(Ctrl+C again kills)" in err
        assert not alive(tmp_path)


@pytest.mark.timeout(180)
def test_a_stopped_run_has_a_merged_model_and_is_kept_until_ctrl_c(
    job: Path, tmp_path: Path
) -> None:
    endless = ("--set", "run.token_budget=1_000_000_000", "--out", str(tmp_path))
    with syncline("up", str(job), *endless, "--keep", "--json") as started:
        assert started.stderr is not None
        begins = "The live page is at "
        page = next(line for line in started.stderr if line.startswith(begins))
        page = page.removeprefix(begins).strip()
        replica = tmp_path / "small" / "logs" / "replica-0.out"
        assert until(lambda: holds_text(replica, '"revision": 3'))
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


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_the_demo_leaves_no_process_behind(tmp_path: Path, sign: signal.Signals) -> None:
    with syncline("demo", "--out", str(tmp_path)) as started:
        assert until(lambda: bool(list(tmp_path.glob("*/logs/replica-1.log"))), 30.0)
        started.send_signal(sign)
        started.communicate(timeout=WAIT_S)
        assert until(lambda: not alive(tmp_path))


@pytest.mark.timeout(180)
def test_a_killed_replica_is_started_again(job: Path, tmp_path: Path) -> None:
    longer = ("--set", "run.token_budget=163_840", "--out", str(tmp_path), "--json")
    with syncline("up", str(job), *longer) as started:
        victim = tmp_path / "small" / "logs" / "replica-1.out"
        assert until(lambda: holds_text(victim, '"progress"') or started.poll() is not None)
        trainers = [pid for pid in alive(tmp_path) if is_trainer(pid, "replica-1")]
        assert len(trainers) == 1
        os.kill(trainers[0], signal.SIGKILL)
        out, err = started.communicate(timeout=WAIT_S * 2)
        assert started.returncode == 0, err
    assert "replica-1 ended with exit code 137 (killed by SIGKILL); starting it again." in err
    told = json.loads(out)
    assert told["tokens"] >= 163_840
    assert "replica-0" in told["replicas"]
    assert not alive(tmp_path)


def is_trainer(pid: int, replica: str) -> bool:
    """Whether it is the replica itself, and not its guard."""
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return argv[1:3] == [b"-m", b"syncline.train"] and replica.encode() in argv


def test_a_replica_that_cannot_start_ends_the_launch_with_its_own_code(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Only the trainer looks into the data, and there it is shorter than one sequence.
    too_long = ["--set", "data.sequence_length=100_000", "--set", "train.micro_batch=1"]
    too_long += ["--set", "model.config.max_position_embeddings=100_000"]
    assert run(["up", str(job), *too_long, "--out", str(tmp_path)]) == 13
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
