"""``syncline status --watch`` on a terminal of its own: it draws again and again, until Ctrl+C."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from syncline_testing.cluster import Cluster

SEEN_S = 60.0
CTRL_C = b"\x03"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
# Leads a session of its own, whose terminal is standard input: so Ctrl+C is the terminal's.
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "syncline.cli", *sys.argv[1:]])
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")


class Terminal:
    """What a person sees, and their keyboard."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.screen = ""

    def sees(self, text: str, times: int = 1) -> None:
        """Wait until ``text`` was drawn so often in all."""
        end = time.monotonic() + SEEN_S
        while self.screen.count(text) < times:
            left = end - time.monotonic()
            assert left > 0 and self._read(left), f"{text!r} did not come; there was {self.screen}"

    def presses(self, key: bytes) -> None:
        os.write(self._file, key)

    def rest(self) -> None:
        """Read up to the program's end."""
        while self._read(SEEN_S):
            pass

    def _read(self, within_s: float) -> bool:
        if not select.select([self._file], [], [], within_s)[0]:
            return False
        try:
            said = os.read(self._file, 1 << 16)
        except OSError:  # nobody holds the other end any more
            return False
        self.screen += said.decode(errors="replace")
        return bool(said)


def test_it_draws_what_is_new_and_ends_with_ctrl_c(control_alone: Cluster) -> None:
    control_alone.post("/runs", {"name": "first-run"})
    ours, theirs = pty.openpty()
    terminal = Terminal(ours)
    flags = ["status", "--watch", "--every", "0.2", "--control", control_alone.control_url]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SYNCLINE_")}
    with subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *flags],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**kept, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    ) as process:
        try:
            os.close(theirs)
            terminal.sees("first-run", times=3)
            assert "second-run" not in terminal.screen
            control_alone.post("/runs", {"name": "second-run"})
            terminal.sees("second-run", times=2)
            control_alone.control.kill()
            terminal.sees("does not answer")
            control_alone.control.start()
            seen = terminal.screen.count("second-run")
            terminal.sees("second-run", times=seen + 1)
            terminal.presses(CTRL_C)
            terminal.rest()
            assert process.wait(SEEN_S) == 130
        finally:
            process.kill()
            os.close(ours)
    assert "Traceback" not in terminal.screen
    assert terminal.screen.rindex(SHOW) > terminal.screen.rindex(HIDE), "the cursor is back"
    # In one place: each picture goes back up over the one before.
    assert len(re.findall(r"\x1b\[1A", terminal.screen)) > 3
