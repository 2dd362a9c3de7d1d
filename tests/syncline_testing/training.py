"""A job small enough to train in a second, its data, and a listener that remembers.

What every test of the trainer starts from; nothing here trains by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from syncline.data.corpus import stdlib_folder
from syncline.data.prepare import prepare
from syncline.train.config import JobConfig
from syncline.train.progress import Ending, Snapshot, Start

SEQUENCE, MICRO_BATCH = 32, 4
STEP_TOKENS = SEQUENCE * MICRO_BATCH

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}

TEXTS = ("argparse.py", "ast.py", "bisect.py", "cmd.py", "code.py", "copy.py", "csv.py")


def tiny_data(folder: Path) -> Path:
    """A few files of the standard library, prepared as bytes."""
    sources = [stdlib_folder() / name for name in TEXTS]
    prepare(sources, folder, held_out_fraction=0.2, progress=False)
    return folder


def tiny_job(data: Path, *, steps: int, **sections: dict[str, Any]) -> JobConfig:
    """A two-block Llama of 30,000 parameters that trains ``steps`` inner steps alone.

    ``sections`` are laid over the job's own, key by key.
    """
    values: dict[str, dict[str, Any]] = {
        "run": {"name": "tiny", "token_budget": steps * STEP_TOKENS},
        "model": {"config": LLAMA},
        "data": {"path": data, "sequence_length": SEQUENCE},
        "train": {"micro_batch": MICRO_BATCH, "threads": 1},
        "optimizer": {"lr": 3e-3, "schedule": "wsd", "warmup_tokens": 64},
        "evaluate": {"sequences": 8},
        "log": {"every_steps": 1},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return JobConfig.checked(values, "tiny job")


def to_toml(job: JobConfig) -> str:
    """The job as a file: its sections, as inline tables."""
    return "\n".join(f"{name} = {_toml(value)}" for name, value in job.to_job().items())


class Recorder:
    """A listener that keeps all it is told."""

    def __init__(self) -> None:
        self.started: Start | None = None
        self.snapshots: list[Snapshot] = []
        self.ending: Ending | None = None

    def start(self, start: Start) -> None:
        self.started = start

    def update(self, now: Snapshot) -> None:
        self.snapshots.append(now)

    def close(self, ending: Ending | None = None) -> None:
        self.ending = ending or self.ending

    @property
    def losses(self) -> list[float]:
        return [now.loss for now in self.snapshots]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        held = (f"{key} = {_toml(below)}" for key, below in value.items() if below is not None)
        return f"{{ {', '.join(held)} }}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
