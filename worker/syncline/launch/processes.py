"""Child processes: start, watch, stop. Each has a guard, its own session, and files for its words.

What a child prints goes to files and never through pipes of ours, so no child ever waits for the
launcher to read. Nothing here knows what the children are for.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from syncline.interrupts import Deferred
from syncline.launch import guard
from syncline_proto.errors import ProcessFailed, StoreError, SynclineError, every_kind

TAIL_BYTES = 16 << 10
READ_BYTES_MAX = 1 << 20
"""Read of a child's output in one look; the rest comes with the next one."""
LINE_BYTES_MAX = 1 << 20
"""Kept of a line that has not ended; of a longer one the beginning is dropped."""
KILL_GRACE_S = guard.KILL_WAIT_S + 2.0
POLL_S = 0.05
FULL_BYTES = 1 << 20
"""A disk with less is full: no store of ours begins in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, and where its words go."""

    name: str
    argv: Sequence[str]
    folder: Path
    """Standard output goes to NAME.out in it, standard error to NAME.log; both are appended to."""
    stage: int = 0
    """Stops go stage by stage, the highest first."""
    grace_s: float = 5.0
    """From SIGTERM to SIGKILL."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to our own environment."""

    @property
    def out(self) -> Path:
        return self.folder / f"{self.name}.out"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"


class Process:
    """One started command.

    Invariants:
        - while the lifeline is open, the command runs or has ended by itself;
        - once it is closed, by ``kill`` or by our own end, nothing of the command is left.
    """

    def __init__(self, command: Command) -> None:
        """Start it. What its files already held is not read again."""
        self.command = command
        command.folder.mkdir(parents=True, exist_ok=True)
        self._out = _Follower(command.out)
        guarded = [sys.executable, "-I", "-S", guard.__file__, *command.argv]
        reader, lifeline = os.pipe()
        try:
            with command.out.open("ab") as out, command.log.open("ab") as log:
                self._guard = subprocess.Popen(
                    guarded,
                    stdin=reader,
                    stdout=out,
                    stderr=log,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **command.env},
                    start_new_session=True,
                )
        except BaseException:
            os.close(lifeline)
            self._out.close()
            raise
        finally:
            os.close(reader)
        self._lifeline: int | None = lifeline

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + N if signal N ended it."""
        code = self._guard.poll()
        return 128 - code if code is not None and code < 0 else code

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        if self.exit_code is None:
            self._guard.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it started; return when they are gone."""
        self._close_lifeline()
        try:
            self._guard.wait(KILL_GRACE_S)
        except subprocess.TimeoutExpired:
            # Stopped (SIGSTOP) or stuck: its command has the kernel's word to go with it.
            self._guard.kill()
            self._guard.wait()
        self._out.close()

    def lines(self) -> list[str]:
        """Return the lines of standard output that came since the last call."""
        return self._out.lines()

    def last_words(self, count: int = 6) -> list[str]:
        """Return the last lines of the log."""
        try:
            with self.command.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line for line in text.splitlines() if line.strip()][-count:]

    def failure(self) -> SynclineError:
        """Say how it ended, for a person: a StoreError where the disk left it no room for words."""
        ended = f"{self.name} ended with {describe_exit(self.exit_code)}; its log is"
        words = "".join(f"\n    {line}" for line in self.last_words())
        if words:
            return ProcessFailed(f"{ended} {self.command.log} and ends with:{words}")
        empty = f"{ended} {self.command.log} and is empty"
        if _is_full(self.command.folder):
            return StoreError(
                f"{empty}, since the disk of {self.command.folder} is full; make room."
            )
        return ProcessFailed(f"{empty}.")

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


class Crew:
    """The processes of one launch, as a context manager that leaves none behind."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._is_hurried = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, command: Command) -> Process:
        """Start a command; it is stopped with the crew."""
        with Deferred():  # until it is known, nobody would wait for its end
            process = Process(command)
            self._processes.append(process)
        return process

    def remove(self, process: Process) -> None:
        """Forget a process, after making sure that it is gone."""
        process.kill()
        self._processes.remove(process)

    def stop(self) -> None:
        """Stop everyone, the highest stage first: SIGTERM, the grace, then SIGKILL.

        ``hurry``, or a KeyboardInterrupt on the way, cuts the graces short; nobody is left in any
        case.
        """
        try:
            for stage in sorted({p.command.stage for p in self._processes}, reverse=True):
                self._stop_together([p for p in self._processes if p.command.stage == stage])
        finally:
            for process in self._processes:
                process.kill()
            self._processes.clear()

    def hurry(self) -> None:
        """Let a stop, under way or to come, wait for nobody; a signal handler may call it."""
        self._is_hurried = True

    def _stop_together(self, processes: Sequence[Process]) -> None:
        """Ask all of them to end, and wait until the longest grace is over."""
        if self._is_hurried:
            return
        for process in processes:
            process.terminate()
        end = time.monotonic() + max((p.command.grace_s for p in processes), default=0.0)
        while any(p.exit_code is None for p in processes):
            if self._is_hurried or time.monotonic() > end:
                break
            time.sleep(POLL_S)
        for process in processes:
            process.kill()


def describe_exit(code: int | None) -> str:
    """Return an exit code in words: with its name if it is one of ours, or the signal.

    For a process that ended by itself: SIGKILL came from elsewhere, a system out of memory above
    all.
    """
    if code is None:
        return "no exit code"
    if code == 128 + signal.SIGKILL:
        return f"exit code {code} (killed by SIGKILL: the system may have run out of memory)"
    if code > 128:
        try:
            return f"exit code {code} (killed by {signal.Signals(code - 128).name})"
        except ValueError:
            return f"exit code {code}"
    name = error_of_exit(code)
    return f"exit code {code} ({name.code})" if name else f"exit code {code}"


def error_of_exit(code: int) -> type[SynclineError] | None:
    """Return the error that ends a program with this exit code; None if none of ours does."""
    found = (kind for kind in every_kind() if kind.exit_code == code and kind is not SynclineError)
    return next(found, None)


class _Follower:
    """Reads what is appended to a file, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file: BinaryIO = path.open("rb")
        self._file.seek(0, os.SEEK_END)
        self._rest = b""

    def lines(self) -> list[str]:
        if self._file.closed:
            return []
        *whole, rest = (self._rest + self._file.read(READ_BYTES_MAX)).split(b"\n")
        self._rest = rest[-LINE_BYTES_MAX:]
        return [line.decode(errors="replace") for line in whole]

    def close(self) -> None:
        self._file.close()


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < FULL_BYTES
    except OSError:  # it has gone, with the log
        return False
