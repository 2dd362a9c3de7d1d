"""Ctrl+C in the first instant and in the last: the exit code stands, and there is no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from syncline.interrupts import Deferred

STOPS = (signal.SIGINT, signal.SIGTERM)


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


@pytest.mark.parametrize("loading", ["structlog", "grpc", "syncline_sync.command"])
def test_the_sync_service_is_interrupted_while_it_loads(loading: str) -> None:
    ended = interrupted("syncline_sync.__main__", loading)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.parametrize("loading", ["structlog", "syncline_control.command", "fastapi"])
def test_the_control_plane_is_interrupted_while_it_loads(loading: str) -> None:
    ended = interrupted("syncline_control.__main__", loading)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.parametrize(
    ("module", "argument", "code"), [("syncline.cli", "version", 0), ("syncline.train", "none", 12)]
)
def test_who_ends_already_is_not_interrupted(module: str, argument: str, code: int) -> None:
    script = (
        "import atexit, os, runpy, signal\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
    )
    command = [sys.executable, "-c", script, argument]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr


def test_ctrl_c_waits_for_what_would_abort_of_it() -> None:
    before = [signal.getsignal(number) for number in STOPS]
    for number in STOPS:
        signal.signal(number, signal.default_int_handler)
    done: list[int] = []
    try:
        for number in STOPS:
            with pytest.raises(KeyboardInterrupt), Deferred():
                os.kill(os.getpid(), number)
                done.append(number)
            assert signal.getsignal(number) is signal.default_int_handler
        with Deferred():
            pass
    finally:
        for number, heed in zip(STOPS, before, strict=True):
            signal.signal(number, heed)
    assert done == list(STOPS)


def test_a_second_ctrl_c_does_not_wait() -> None:
    script = (
        "import os, signal, time\n"
        "from syncline.interrupts import Deferred\n"
        "with Deferred():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('went on')\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


def ending(folder: Path, script: str, code: int = 7) -> tuple[int, str, str]:
    """Of a module that has said ``said`` and ends with the code, run as ours are (``-m``)."""
    script = f"import atexit, ctypes, os, signal, sys\n{script}\nprint('said')\nend({code})\n"
    (folder / "program.py").write_text(f"from syncline.interrupts import end\n{script}")
    command = [sys.executable, "-m", "program"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


def test_who_has_torch_lets_the_interpreter_be_and_has_said_all(tmp_path: Path) -> None:
    aborts = "atexit.register(os.abort)  # as gloo's threads may"
    assert ending(tmp_path, f"import torch\n{aborts}") == (7, "said\n", "")


def test_without_torch_what_waits_for_the_end_is_done(tmp_path: Path) -> None:
    assert ending(tmp_path, "atexit.register(print, 'done')") == (7, "said\ndone\n", "")


def test_who_was_interrupted_amid_python_that_c_code_ran_ends_with_130(tmp_path: Path) -> None:
    loads = (
        "runs = ctypes.pythonapi.PyRun_String\n"
        "runs.argtypes = ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object\n"
        "try: runs(b'raise KeyboardInterrupt', 257, {}, {})\n"
        "except KeyboardInterrupt: pass\n"
    )
    assert ending(tmp_path, loads, 130) == (130, "said\n", "")


def test_ctrl_c_ends_what_blocks_at_the_end(tmp_path: Path) -> None:
    """Such as the flush into a pipe that nobody reads."""
    stuck = (
        "class Stuck:\n"
        "    def write(self, text): pass\n"
        "    def flush(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        signal.sigwait([signal.SIGTERM])\n"
        "sys.stdout = Stuck()"
    )
    assert ending(tmp_path, stuck) == (7, "", "")


@pytest.mark.parametrize(
    "door", ["syncline.cli.app", "syncline_sync.__main__", "syncline_control.__main__"]
)
def test_the_door_loads_next_to_nothing(door: str) -> None:
    script = (
        "import sys\n"
        "before = set(sys.modules)\n"
        f"import {door}\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(loaded & {'typing', 'typer', 'pydantic', 'structlog', 'argparse'}))\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "\n"
