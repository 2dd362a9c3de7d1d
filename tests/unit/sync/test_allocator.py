"""Memory for chunks is not fetched from the kernel again and again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import ctypes, resource, sys
from syncline_sync.allocator import keep_freed_memory

# Of huge pages a few faults bring everything, wherever the kernel gives them unasked.
assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE := 41, 1, 0, 0, 0) == 0

if sys.argv[1] == "kept":
    keep_freed_memory()


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def chunks():
    held = [b"x" * (1 << 20) for _ in range(8)]
    held.clear()


chunks()
before = faults()
for _ in range(20):
    chunks()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_what_was_freed_is_used_again() -> None:
    found = {
        how: int(subprocess.check_output([sys.executable, "-c", COUNT, how], text=True))
        for how in ("kept", "as it is")
    }
    assert found["kept"] < 100, found
    assert found["as it is"] > 10_000, found


GIVEN = """
import re
from pathlib import Path
from syncline_sync.allocator import Leavings, keep_freed_memory

keep_freed_memory()
leavings = Leavings()


def resident():
    return int(re.search("VmRSS:.*?([0-9]+)", Path("/proc/self/status").read_text())[1]) >> 10


def flood():
    held = [b"x" * (1 << 16) for _ in range(4096)]
    return held[::64]  # in use, so that what is between goes back to nobody


for _ in range(2):
    rest = resident()
    few = flood()
    left = resident() - rest
    print(left, leavings.give_back(), left - (resident() - rest), leavings.give_back())
    del few
    leavings.give_back()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_what_a_flood_leaves_between_what_is_in_use_goes_back_once_each_time() -> None:
    told = subprocess.check_output([sys.executable, "-c", GIVEN], text=True).splitlines()
    for left, first, back, again in map(str.split, told):
        assert int(left) > 150 and first == "True", told
        assert int(back) > 128 and again == "False", told
