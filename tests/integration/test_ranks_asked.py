"""What starts the ranks of a replica passes a request to end on to all, however early it comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from syncline.launch import ranks

COUNT = 20
ASKS = "test $RANK != 0 || kill -TERM $PPID; exec sleep 60"
"""Rank 0 asks before the last ones are there."""


@pytest.mark.skipif(sys.platform != "linux", reason="ranks go with their parent on Linux alone")
def test_who_is_asked_while_ranks_start_ends_them_all_and_tells_their_code() -> None:
    command = [sys.executable, "-I", ranks.__file__, str(COUNT), "/bin/sh", "-c", ASKS]
    assert subprocess.run(command, cwd=Path("/"), timeout=50, check=False).returncode == 128 + 15
