"""Memory for chunks is not fetched from the kernel again and again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
from syncline_sync.allocator import keep_freed_memory

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
