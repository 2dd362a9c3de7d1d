"""The ranks of one replica on one machine: torchrun's environment, without torchrun.

Started by path with the standard library alone (``python -I ranks.py COUNT COMMAND...``). It
differs from torchrun in what a supervisor needs: the exit code is that of the rank that failed
first, that rank's own sentence is the last one in the log, and no traceback follows it. It never
restarts a rank, since a replica comes back as a whole.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

LOOPBACK = "127.0.0.1"
FOLLOW_S = 10.0
"""For the others to end by themselves after one failed, and again after they are asked to."""
LOOK_S = 0.05

_PR_SET_PDEATHSIG = 1


def main(count: int, command: list[str]) -> int:
    """Run ``command`` once for each rank; return 0, or the code of the first rank that failed."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)  # to be passed on: ranks may be on their way still

    signal.signal(signal.SIGTERM, ask)
    # Ctrl+C reaches the ranks by themselves, for they are in our group.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(_free_port()),
    }
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            preexec_fn=(lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)) if prctl else None,
        )
        for rank in range(count)
    ]

    return _wait(ranks, asked)


def _wait(ranks: list["subprocess.Popen[bytes]"], asked: list[int]) -> int:
    """Wait until all have ended; once one fails, not for long. Passes on what is ``asked``."""
    failed = 0
    limits: list[float] = []
    while any(rank.poll() is None for rank in ranks):
        time.sleep(LOOK_S)
        while asked:
            number = asked.pop(0)
            for rank in ranks:
                rank.send_signal(number)
        failed = failed or _first_failure(ranks)
        now = time.monotonic()
        if failed and not limits:
            limits = [now + FOLLOW_S, now + 2 * FOLLOW_S]
        for rank in ranks:
            if limits and now > limits[1]:
                rank.kill()
            elif limits and now > limits[0]:
                rank.terminate()
    return failed or _first_failure(ranks)


def _first_failure(ranks: list["subprocess.Popen[bytes]"]) -> int:
    codes = (rank.poll() for rank in ranks)
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
