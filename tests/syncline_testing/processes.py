"""Programs that a test starts, which no setting of who runs it reaches; and who is still there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = "SYNCLINE_TEST_"
"""So variables begin that say where tests train."""


def environment(**ours: str) -> dict[str, str]:
    """This process's, with no variables of ours but these, and one thread for who computes.

    Those that say where tests train are the tests'.
    """
    settings = [n for n in os.environ if n.startswith("SYNCLINE_") and not n.startswith(TESTS)]
    kept = {name: text for name, text in os.environ.items() if name not in settings}
    return {**kept, "OMP_NUM_THREADS": "1", **ours}


@contextmanager
def python(*arguments: str, **ours: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python; at the end it is killed, so that lifelines that it holds are cut.

    ``ours``: variables of its environment.
    """
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**ours),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def alive(mark: Path) -> dict[int, list[str]]:
    """The processes that have ``mark`` in their command line, and its words; but for this one.

    Zombies have none.
    """
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(mark) in line:
                found[int(entry.name)] = line.split("\0")
    return found


def of_module(mark: Path, module: str, *words: str) -> list[int]:
    """Of those alive, who is the module itself, and not its guard, and was given these words."""
    return [
        pid
        for pid, argv in alive(mark).items()
        if argv[1:3] == ["-m", module] and set(words) <= set(argv)
    ]
