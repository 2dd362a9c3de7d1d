"""The sync service's settings: what cannot be is refused at the start, in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from syncline_proto.names import NAME_WORDS
from syncline_sync.settings import SyncSettings
from syncline_testing.processes import environment


def refusal(data: Path, *flags: str, **variables: str) -> tuple[int, str]:
    """(exit code, what it said) of a start that comes to nothing."""
    command = [sys.executable, "-m", "syncline_sync", "--data", str(data), *flags]
    ended = subprocess.run(
        command,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
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


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--staging-bytes", "2 gigs"), "--staging-bytes: '2 gigs' is not a number of bytes, such"),
        (
            ("--staging-bytes", "512K"),
            "--staging-bytes: it must be at least 1048576 (1M), not '512K'.",
        ),
        (("--port", "many"), "--port must be a valid integer, not 'many'."),
        (("--shards", "two"), "--shards must be a valid integer, not 'two'."),
        (("--name", "No Name"), f"--name must be {NAME_WORDS}, not 'No Name'."),
        (("--fall-back", "run-a"), "--fall-back: it is RUN@REVISION, such as my-run@7, as the"),
        (("--fall-back", "No Run@7"), "--fall-back: it is RUN@REVISION, such as my-run@7, as the"),
        (("--fall-back", "run-a@-1"), "--fall-back: it is RUN@REVISION, such as my-run@7, as the"),
        (("--data", ""), "--data: it is empty; name a folder."),
    ],
)
def test_what_cannot_be_is_repeated_with_what_can(
    tmp_path: Path, flags: tuple[str, str], why: str
) -> None:
    code, said = refusal(tmp_path, *flags)
    assert code == 10
    assert why in said


@pytest.mark.parametrize(("key", "value"), [("PORT", "many"), ("THREADS", "-1")])
def test_what_is_wrong_in_the_environment_is_named_as_it_stands_there(
    tmp_path: Path, key: str, value: str
) -> None:
    code, said = refusal(tmp_path, **{f"SYNCLINE_SYNC_{key}": value})
    assert code == 10
    assert f"SYNCLINE_SYNC_{key} must be" in said and "--" not in said


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("1048576", 1 << 20),
        ("512M", 1 << 29),
        ("2G", 2 << 30),
        ("3GiB", 3 << 30),
        (1 << 21, 1 << 21),
    ],
)
def test_room_for_pushes_may_have_a_unit(given: str | int, size: int) -> None:
    assert SyncSettings.model_validate({"staging_bytes": given}).staging_bytes == size


@pytest.mark.parametrize("wrong", ["2GB", "G", "1.5G", "-1", "2iB", "٣G", "1e9"])
def test_a_size_that_could_be_two_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="is not a number of bytes"):
        SyncSettings.model_validate({"staging_bytes": wrong})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
def test_who_listens_everywhere_says_where_replicas_connect_to(tmp_path: Path, host: str) -> None:
    code, said = refusal(tmp_path, "--host", host, "--insecure")
    assert code == 10
    assert f"connect to {host}, which is no" in said and "give --advertise HOST:PORT" in said
    told = SyncSettings(host=host, insecure=True, advertise="sync-0:50051")
    assert told.advertise == "sync-0:50051"


@pytest.mark.parametrize("token", ["two words", "line\n", "wört"])
def test_a_token_that_no_header_takes_is_refused_and_not_repeated(
    tmp_path: Path, token: str
) -> None:
    code, said = refusal(tmp_path, "--token", token)
    assert code == 10
    assert "--token: it holds a line break, a space or a character beyond ASCII" in said
    assert token not in said


def test_a_token_may_be_a_flag(tmp_path: Path) -> None:
    elsewhere = ("--host", "192.0.2.1")  # an address of no machine
    code, said = refusal(tmp_path, *elsewhere)
    assert code == 10 and "give --token (or SYNCLINE_SYNC_TOKEN)" in said
    code, said = refusal(tmp_path, *elsewhere, "--token", "secret")
    assert "token" not in said and "--host" in said
