"""Launches of a job that trains for a second, as processes of this machine, and a look at them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
ENDLESS = ("--set", "run.token_budget=1_000_000_000")
ONE = ("--replicas", "1", "--set", "run.min_replicas=1")
SHORT = (*ONE, "--set", "run.token_budget=8_192")
TOO_LONG = (
    *("--set", "data.sequence_length=15_000", "--set", "train.micro_batch=1"),
    *("--set", "model.config.max_position_embeddings=15_000"),
)
"""Which only the trainer sees: the held-out data is shorter than one such sequence."""


def small_job(folder: Path) -> Path:
    """The job's file, its text and its data, all in the folder."""
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


def runs(pid: int, module: str, name: str) -> bool:
    """Whether it is the module itself, and not its guard; of replicas, the one of that name."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    ours = argv[1:3] == [b"-m", module.encode()]
    return ours and (module != "syncline.train" or name.encode() in argv)
