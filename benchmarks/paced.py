"""What benchmarks of paced replicas have in common: how they wait, how they end, and on what.

What is measured, and what is asked of it, they say themselves.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from interrupted import interruptible
from network import NetworkUnavailable
from syncline.launch.processes import Process, describe_exit

LOOK_S = 0.1
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Of a container's control group: its time of all processors in each period, or ``max``."""


class Failed(Exception):
    """It could not be measured; one sentence."""


def tell(
    measured: Callable[[], dict[str, Any]], shortfall: Callable[[Any], str | None]
) -> NoReturn:
    """End the program: with what was measured as a line of JSON, and a sentence if it falls short.

    Its exit code is 1 if that, or the measurement, failed.
    """
    if not Path("/proc/self/stat").exists():
        sys.exit("This needs Linux: what processes compute is read from /proc.")
    try:
        with interruptible():
            result = measured()
    except (NetworkUnavailable, Failed) as error:
        sys.exit(str(error))
    print(json.dumps(result))
    sys.exit(shortfall(result))


def wait_until(
    is_so: Callable[[], bool], limit_s: float, what: str, processes: Sequence[Process]
) -> None:
    """Return once it is so, while these processes run or have ended well.

    Raises:
        Failed: it takes too long until ``what``, or a process has ended badly.
    """
    end_s = time.monotonic() + limit_s
    while not is_so():
        check_well(processes)
        if time.monotonic() > end_s:
            raise Failed(f"It took over {limit_s:g} s until {what}.")
        time.sleep(LOOK_S)
    check_well(processes)


def check_well(processes: Sequence[Process]) -> None:
    """
    Raises:
        Failed: one has ended badly.
    """
    for process in processes:
        if process.exit_code not in (None, 0):
            words = process.last_words(1) or ["its log is empty"]
            ended = describe_exit(process.exit_code)
            raise Failed(f"{process.name} ended with {ended}: {words[0].strip()}")


def processors() -> float:
    """How many processors this process may use: those it may run on, or less in a container."""
    has_word = hasattr(os, "sched_getaffinity")
    count = float(len(os.sched_getaffinity(0)) if has_word else os.cpu_count() or 1)
    with suppress(OSError, ValueError):  # there is no control group, or it has no bound
        quota, period = map(int, CPU_MAX.read_text().split())
        count = min(count, quota / period)
    return count
