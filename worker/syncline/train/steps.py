"""Which checkpoints a replica's folder holds, by their names alone.

Reads none of them, and imports no torch, so that a launcher can ask the same question, and a
trainer before it loads anything.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from syncline_proto.errors import ConfigError, FileMissing

if TYPE_CHECKING:
    from syncline.train.config import JobConfig

ALONE = "alone"
"""The name, among a run's folders, of who trains in none."""
NO_FOLDER = "--resume needs checkpoint.folder; set it in the job."
STEP_FOLDER = re.compile(r"step-(\d{10})$")
BEFORE = re.compile(r"\.(step-\d{10})\.before$")
"""The one that a newer of the same step is about to replace."""


def checkpoints_in(folder: Path) -> list[Path]:
    """All whole checkpoints, oldest first; none, where there is no such folder."""
    if not folder.is_dir():
        return []
    there = {path.name: path for path in folder.iterdir()}
    found = {name: path for name, path in there.items() if STEP_FOLDER.match(name)}
    for name, path in there.items():
        if replaced := BEFORE.match(name):
            found.setdefault(replaced[1], path)
    return [found[name] for name in sorted(found)]


def check_resumable(job: JobConfig, *, in_run: bool) -> None:
    """Refuse ``--resume`` where there is nothing to go on from.

    A replica of a run may do without: that has its parameters.

    Raises:
        ConfigError: the job names no folder.
        FileMissing: training alone, there is no checkpoint.
    """
    folder = job.checkpoint.folder
    if folder is None:
        raise ConfigError(NO_FOLDER)
    if not in_run and not checkpoints_in(own := folder / job.run.name / ALONE):
        raise none_in(own)


def none_in(folder: Path) -> FileMissing:
    """What is said where a folder has no checkpoint to go on from."""
    return FileMissing(f"there is no checkpoint in {folder}; start without --resume.")
