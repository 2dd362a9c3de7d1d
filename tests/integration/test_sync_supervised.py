"""``syncline-sync --shards 2``: one command keeps two services, and leaves none behind."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syncline_proto.owners import Seat
from syncline_proto.settings import RunSettings
from syncline_sync.seating import folder_of, take_seat
from syncline_testing.processes import environment
from syncline_testing.service import RUN, flat_layout, service
from syncline_testing.waiting import wait_until

NOBODY = "http://127.0.0.1:9"

ALONE = ("unshare", "--user", "--map-root-user", "--uts")
"""Lets a command give its host a name that nobody else sees."""


def may_name_hosts() -> bool:
    return shutil.which(ALONE[0]) is not None and not subprocess.call(
        [*ALONE, "hostname", "sync-0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@contextmanager
def command(
    data: Path, *flags: str, said: str = "log", host: str = ""
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The command at work, and its log; killed at the end if it is still there.

    ``host``: it is on one of this name.
    """
    log = data.with_suffix(f".{said}")
    ports = [
        word for port in ("port", "health-port", "metrics-port") for word in (f"--{port}", "0")
    ]
    argv = [sys.executable, "-m", "syncline_sync", "--control", NOBODY, "--data", str(data)]
    named = [*ALONE, "sh", "-c", 'hostname "$0" && exec "$@"', host] if host else []
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*named, *argv, *ports, *flags], env=environment(), stdout=file, stderr=file
        )
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def started(log: Path) -> list[int]:
    """The services' process ids, in the order in which they were started."""
    return [int(pid) for pid in re.findall(r"started .*pid=(\d+)", log.read_text())]


def listening(log: Path) -> int:
    return len(re.findall("listening", log.read_text()))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def opened(data: Path) -> None:
    """Leave the stores of two services in which a run has been opened."""
    data.mkdir()
    take_seat(data, None, 2)
    for index in range(2):
        folder = folder_of(data, index)
        folder.mkdir()
        take_seat(folder, index, 2)
        async with service(folder, RunSettings(), seat=Seat(index, 2)) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(10, 2), "a")


def test_a_service_that_dies_is_started_again_and_a_signal_ends_all(tmp_path: Path) -> None:
    """Told to fall back, each looks once: whom it starts again has not been told."""
    data = tmp_path / "data"
    asyncio.run(opened(data))
    with command(data, "--shards", "2", "--fall-back", f"{RUN}@1") as (process, log):
        wait_until(lambda: listening(log) == 2, 60, "both listen")
        first, second = started(log)
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: listening(log) == 3, 60, "it is back")
        pids = started(log)
        assert len(pids) == 3 and alive(first) and alive(pids[2]) and not alive(second)
        assert {path.name for path in data.glob("sync-*")} == {"sync-0", "sync-1"}
        assert log.read_text().count("nothing of the run is damaged") == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 130
        assert not any(map(alive, pids))


def test_services_end_when_who_began_them_is_killed(tmp_path: Path) -> None:
    with command(tmp_path / "data", "--shards", "2") as (process, log):
        wait_until(lambda: listening(log) == 2, 60, "both listen")
        process.kill()
        wait_until(lambda: not any(map(alive, started(log))), 20, "nobody is left")


def test_what_no_restart_would_mend_ends_all_with_its_code(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "sync-1").write_text("a file where a folder should be")
    with command(data, "--shards", "2") as (process, log):
        assert process.wait(60) == 40
        assert not any(map(alive, started(log)))
        text = log.read_text()
        assert "Cannot write to" in text and "sync-1 ended with exit code 40" in text


@pytest.mark.long
def test_a_folder_is_one_services_and_of_the_number_of_services_that_it_was(
    tmp_path: Path,
) -> None:
    """Whoever comes to it otherwise is told what to say, and changes nothing."""
    data = tmp_path / "data"
    asyncio.run(opened(data))
    other, mine = (folder_of(data, index) for index in range(2))
    wrong = {
        "second": (mine, "2", "1", "Another sync service keeps its store in"),
        "other": (other, "2", "1", "start it with --shards 2 --index 0"),
        "more": (other, "3", "0", "start it with --shards 2 --index 0"),
        "outside": (tmp_path / "new", "2", "2", "index 2 is not below shards (2)"),
        "whole": (data, "2", "0", "start it with --shards 2 and no --index"),
    }
    files = sorted(data.rglob("*.json"))
    before = [path.read_bytes() for path in files]
    with command(mine, "--shards", "2", "--index", "1") as (first, log):
        wait_until(lambda: listening(log) == 1, 60, "the first listens")
        for what, (folder, shards, index, expected) in wrong.items():
            flags = ("--shards", shards, "--index", index)
            with command(folder, *flags, said=what) as (process, told):
                assert process.wait(60) == 10, what
                text = told.read_text()
                assert expected in text and "Traceback" not in text
        assert first.poll() is None
    assert sorted(data.rglob("*.json")) == files
    assert [path.read_bytes() for path in files] == before
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not may_name_hosts(), reason="no host can be given a name here")
def test_a_pod_takes_the_seat_that_its_hosts_name_ends_in(tmp_path: Path) -> None:
    """As those of a StatefulSet are started: all by the same words, each on a folder of its own."""
    data, words = tmp_path / "data", ("--shards", "2", "--index", "host")
    with command(data, *words, host="syncline-sync-1") as (process, log):
        wait_until(lambda: listening(log) == 1, 60, "it listens")
        assert "seat='1 of 2'" in log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
    for host, expected in (("laptop", "does not end in -NUMBER"), ("sync-2", "is not below")):
        with command(data, *words, said=host, host=host) as (process, told):
            assert process.wait(60) == 10
            text = told.read_text()
            assert expected in text and "Traceback" not in text
