"""Skips are told of at the end of a run of the tests, and fail where none is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="no loom here")
def test_marked(): pass

def test_amid():
    pytest.skip("no wool here")

@pytest.mark.xfail(reason="known")
def test_known():
    assert False
"""
PLUGIN = ["-p", "syncline_testing.skips"]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_skip_is_told_of_and_fails_where_none_is_wanted(tmp_path: Path, wanted: bool) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    env |= {"SYNCLINE_NO_SKIPS": "" if wanted else "1"}
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-ra", "-p", "no:cacheprovider", "."]
    ended = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == (0 if wanted else 1), ended.stdout
    told = ended.stdout.partition("short test summary info")[2]
    assert "no loom here" in told and "no wool here" in told
    assert ("2 skipped, 1 xfailed" if wanted else "1 failed, 1 xfailed, 1 error") in told
    assert ("SYNCLINE_NO_SKIPS is set" in told) is not wanted
