"""A program on a pseudo-terminal of its own: what a person sees there, and their keyboard.

A key goes through the terminal, so Ctrl+C reaches the whole foreground group, as it does in life.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from syncline_testing.processes import environment
from syncline_testing.waiting import wait_until

SEEN_S, MOMENT_S = 90.0, 0.05
CTRL_C = b"\x03"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
# Leads a session of its own, whose terminal is standard input: so Ctrl+C is the terminal's.
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "syncline.cli", *sys.argv[1:]])
"""


class Terminal:
    """The command line at work, and its terminal. What it draws is read only while we wait."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int, theirs: int) -> None:
        self.process = process
        self.screen = ""
        self._ours, self._theirs = ours, theirs

    def sees(self, text: str, times: int = 1) -> None:
        """Wait until ``text`` was drawn so often in all."""
        self.until(lambda: self.screen.count(text) >= times, f"{text!r} is on the screen")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until ``holds``, while the program goes on; a program that ended fails the test."""

        def it_does() -> bool:
            has_ended = self.process.poll() is not None
            self._read(MOMENT_S if has_ended else 0.0)
            there = holds()
            assert there or not has_ended, f"it ended before {what}; there was {self.screen}"
            return there

        wait_until(it_does, SEEN_S, what, lambda: self.screen)

    def presses(self, key: bytes) -> None:
        os.write(self._ours, key)

    def exit_code(self) -> int:
        """Wait for the program's end, and read what it said up to there."""
        self.until(lambda: self.process.poll() is not None, "it has ended")
        self._read(MOMENT_S)
        return self.process.returncode

    def settings(self) -> list[object]:
        """How the terminal is set (echo, line by line, ...), which outlives the program."""
        return termios.tcgetattr(self._theirs)

    def _read(self, within_s: float) -> None:
        """Read what was drawn, until nothing comes for so long: a terminal passes it on later."""
        while select.select([self._ours], [], [], within_s)[0]:
            self.screen += os.read(self._ours, 1 << 16).decode(errors="replace")


@contextmanager
def on_terminal(*arguments: str) -> Iterator[Terminal]:
    """Start the command line with these arguments on a terminal; it is gone at the end."""
    try:
        ours, theirs = os.openpty()
    except OSError as error:
        pytest.skip(f"there is no pseudo-terminal here: {error.strerror}")
    try:
        with subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=environment(TERM="xterm", COLUMNS="100", LINES="40"),
        ) as process:
            try:
                yield Terminal(process, ours, theirs)
            finally:
                process.kill()
    finally:
        os.close(ours)
        os.close(theirs)
