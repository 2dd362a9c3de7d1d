"""Which checkpoints a replica's folder holds, by their names alone.

Reads none of them, and imports no torch, so that a launcher can ask the same question.
"""

from __future__ import annotations

import re
from pathlib import Path

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
