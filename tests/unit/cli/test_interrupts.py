"""Ctrl+C in the first instant: 130 and one line, whatever was being loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def interrupted(module: str, loading: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of ours that gets SIGINT as it loads another module."""
    script = (
        "import os, signal, sys\n"
        "class Amid:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {loading!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        f"from {module} import main\n"
        "sys.meta_path.insert(0, Amid())\n"
        "sys.exit(main())\n"
    )
    kept = {key: text for key, text in os.environ.items() if key != "RANK"}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("loading", ["typer", "syncline.cli.about"])
def test_the_command_line_is_interrupted_while_it_loads(loading: str) -> None:
    ended = interrupted("syncline.cli.app", loading, "version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.parametrize("loading", ["structlog", "syncline.train.config"])
def test_the_trainer_is_interrupted_while_it_loads(loading: str) -> None:
    ended = interrupted("syncline.train.__main__", loading, "job.toml")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


def test_the_door_loads_next_to_nothing() -> None:
    script = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import syncline.cli.app\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(loaded & {'typing', 'typer', 'pydantic', 'structlog', 'argparse'}))\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "\n"
