"""Launches of a job that trains for a second, as processes of this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from syncline_testing.warm import Program, warm

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


def syncline(*arguments: str) -> AbstractContextManager[Program]:
    """The command line, started; it does not outlive the block. What it starts is not warm."""
    return warm("-m", "syncline.cli", *arguments)


def holds_text(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()
