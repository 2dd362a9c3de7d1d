"""The guard: runs one command, and lets nothing of it outlive the launcher.

Started by path with the standard library alone (``python -I -S guard.py COMMAND...``), so that it
costs some ten milliseconds. Its standard input is the lifeline: a pipe whose other end only the
launcher holds. When that closes, for whatever reason (a stop, a crash, kill -9), the guard kills
the command and all that it started. Signals are passed on; the guard ends as its command ended
(128 + N for signal N). It never writes, and imports nothing of ours.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

LIFELINE = 0
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILL_WAIT_S = 5.0
CANNOT_START = 127

_ON_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run ``command`` to its end, or to the launcher's; return the exit code."""
    prctl = ctypes.CDLL(None).prctl if _ON_LINUX else None
    if prctl:
        # What the command leaves behind becomes ours instead of init's, so that we find it.
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signals = _signal_pipe()
    try:
        # Kept to the end: let go, it would collect a child that has ended, and its exit code.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            # Should the guard itself be killed, its command goes with it.
            preexec_fn=(lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)) if prctl else None,
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return CANNOT_START
    while True:
        ready, _, _ = select.select([LIFELINE, signals], [], [])
        if LIFELINE in ready and not os.read(LIFELINE, 1):
            kill_descendants()
            if not _ON_LINUX:
                os.killpg(0, signal.SIGKILL)  # the group that we lead, ourselves with it
            return 128 + signal.SIGKILL
        for number in os.read(signals, 512) if signals in ready else b"":
            if number in PASSED_ON:
                os.kill(child.pid, number)
        code = _reaped(child.pid)
        if code is not None:
            kill_descendants()
            return code


def _signal_pipe() -> int:
    """Return a file that delivers each signal's number as a byte."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer)
    for number in (*PASSED_ON, signal.SIGCHLD):
        signal.signal(number, _nothing)
    return reader


def _nothing(number: int, frame: FrameType | None) -> None:
    """Let the signal only wake the loop up."""


def _reaped(child: int) -> int | None:
    """Collect all that have ended; return the exit code of ``child`` if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else 128 - code


def kill_descendants() -> None:
    """Kill every process below this one, and wait until they are gone (at most 5 s)."""
    end = time.monotonic() + KILL_WAIT_S
    while (below := descendants(os.getpid())) and time.monotonic() < end:
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended between the look and the kill
        _reaped(0)
        time.sleep(0.01)


def descendants(root: int) -> list[int]:
    """Return the processes below ``root``, as /proc tells; without /proc, none."""
    if not _ON_LINUX:
        return []
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The name in parentheses may hold anything; state and parent follow the last one.
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
