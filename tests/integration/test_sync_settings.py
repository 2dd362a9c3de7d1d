"""The sync service's settings: what cannot be is refused at the start, in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from syncline_sync.settings import SyncSettings
from syncline_testing.processes import environment


def refusal(data: Path, *flags: str) -> tuple[int, str]:
    """(exit code, what it said) of a start that comes to nothing."""
    command = [sys.executable, "-m", "syncline_sync", "--data", str(data), *flags]
    ended = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    said = ended.stderr.strip().splitlines()
    assert said[-1].startswith("syncline-sync: ") and said[-1].endswith("."), ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.returncode, said[-1]


@pytest.mark.parametrize(
    "flags",
    [
        ("--control", "nonsense://x"),
        ("--control", "http://127.0.0.1:99999"),
        ("--advertise", "http://sync-0:50051"),
        ("--advertise", "sync-0"),
        ("--advertise", "0.0.0.0:50051"),
        ("--name", "No Name"),
        ("--port", "99999"),
    ],
    ids=" ".join,
)
def test_a_wrong_setting_is_named(tmp_path: Path, flags: tuple[str, str]) -> None:
    code, said = refusal(tmp_path, *flags)
    assert code == 10
    assert flags[0] in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
def test_who_listens_everywhere_says_where_replicas_connect_to(tmp_path: Path, host: str) -> None:
    code, said = refusal(tmp_path, "--host", host, "--insecure")
    assert code == 10
    assert f"connect to {host}, which is no" in said and "give --advertise HOST:PORT" in said
    told = SyncSettings(host=host, insecure=True, advertise="sync-0:50051")
    assert told.advertise == "sync-0:50051"


def test_a_token_may_be_a_flag(tmp_path: Path) -> None:
    elsewhere = ("--host", "192.0.2.1")  # an address of no machine
    code, said = refusal(tmp_path, *elsewhere)
    assert code == 10 and "give --token (or SYNCLINE_SYNC_TOKEN)" in said
    code, said = refusal(tmp_path, *elsewhere, "--token", "secret")
    assert "token" not in said and "--host" in said
