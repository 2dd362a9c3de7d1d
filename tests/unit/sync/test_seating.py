"""A folder's stores are one seat's: another number of services is refused, in a sentence."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from syncline_proto.errors import ConfigError, StoreDamaged, StoreError
from syncline_proto.manifest import MANIFEST
from syncline_proto.owners import SHARDS_MAX
from syncline_sync.files import SEAL
from syncline_sync.seating import MARK, data_folder, folder_of, take_seat
from syncline_sync.settings import SyncSettings
from syncline_sync.supervisor import environment, settings_of, supervise


def begun(data: Path) -> Path:
    """A folder in which a run has begun."""
    (data / "runs" / "r").mkdir(parents=True)
    return data


def test_a_file_is_said_to_be_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    for path in (file, file / "below"):
        with pytest.raises(StoreError, match=r"it is no folder; choose another with --data\.$"):
            data_folder(path)


@pytest.mark.parametrize("of", [".", "sync-1"])
def test_a_folder_that_has_runs_and_takes_nothing_is_not_to_be_given_up(
    tmp_path: Path, of: str
) -> None:
    """On another folder a service has none of its runs."""
    (tmp_path / ".writable").mkdir()
    with pytest.raises(StoreError, match=r"choose another with --data\.$"):
        data_folder(tmp_path)
    begun(tmp_path / of)
    with pytest.raises(StoreError, match=r"Free the disk or mend it, then start") as told:
        data_folder(tmp_path)
    assert "choose" not in told.value.message


def test_a_store_is_taken_up_by_its_own_seat_alone(tmp_path: Path) -> None:
    take_seat(tmp_path, 1, 3)
    take_seat(tmp_path, 0, 2)  # nothing was in it yet
    begun(tmp_path)
    take_seat(tmp_path, 0, 2)
    for other in [(1, 2), (0, 3), (0, 1), (None, 2)]:
        with pytest.raises(ConfigError, match=r"0 of 2; start it with --shards 2 --index 0"):
            take_seat(tmp_path, *other)


@pytest.mark.parametrize(
    ("index", "shards"), [(None, "2"), ("0", 2), (2, 2), (-1, 2), (0, 0), (0, SHARDS_MAX + 1)]
)
def test_a_seat_that_there_is_not_is_damage(tmp_path: Path, index: object, shards: object) -> None:
    mark = SEAL.close(json.dumps({"index": index, "shards": shards}))
    for folder in (tmp_path, tmp_path / "sync-0"):
        begun(folder)
    (tmp_path / MARK).write_bytes(mark)
    for folder in (tmp_path, tmp_path / "sync-0"):
        with pytest.raises(StoreDamaged, match=rf"{MARK} is damaged"):
            take_seat(folder, 0, 2)


def test_a_store_of_before_is_a_single_services(tmp_path: Path) -> None:
    begun(tmp_path)
    take_seat(tmp_path, 0, 1)
    assert not (tmp_path / MARK).exists()
    with pytest.raises(ConfigError, match="without --shards"):
        take_seat(tmp_path, 0, 2)


def test_a_folder_of_several_stores_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    take_seat(tmp_path, None, 2)
    begun(folder_of(tmp_path, 1))
    for other in [(0, 1), (None, 3), (0, 2)]:
        with pytest.raises(
            ConfigError, match=r"of 2 sync services; start it with --shards 2 and no --index"
        ):
            take_seat(tmp_path, *other)


def test_a_folder_that_has_lost_its_mark_is_no_single_services(tmp_path: Path) -> None:
    take_seat(tmp_path, None, 2)
    one = folder_of(tmp_path, 1)
    take_seat(begun(one), 1, 2)
    (one / MARK).unlink()
    take_seat(one, 1, 2)
    with pytest.raises(ConfigError, match=r"1 of 2; start it with --shards 2 --index 1,"):
        take_seat(one, 0, 1)
    take_seat(begun(folder_of(tmp_path, 0)), 0, 2)
    (tmp_path / MARK).unlink()
    take_seat(tmp_path, None, 2)
    for other in [(0, 1), (None, 3)]:
        with pytest.raises(
            ConfigError, match=r"of 2 sync services; start it with --shards 2 and no --index"
        ):
            take_seat(tmp_path, *other)


def test_a_lost_mark_that_nobody_else_tells_of_is_said_to_be_one(tmp_path: Path) -> None:
    take_seat(begun(tmp_path / "sync-1"), 0, 1)
    with pytest.raises(ConfigError, match=rf"or its {MARK} is lost"):
        take_seat(tmp_path / "sync-1", 1, 2)


@pytest.mark.parametrize("below", [".", "r-r7"])
def test_a_folder_of_checkpoints_is_no_store(tmp_path: Path, below: str) -> None:
    (tmp_path / below).mkdir(exist_ok=True)
    (tmp_path / below / MANIFEST).write_text("{}")
    with pytest.raises(ConfigError, match="holds checkpoints, and no store of a sync service"):
        take_seat(tmp_path, 0, 1)
    assert not (tmp_path / MARK).exists()
    begun(tmp_path)
    take_seat(tmp_path, 0, 1)  # runs are never given up for what lies beside them


def test_a_seat_that_cannot_be_read_is_not_guessed(tmp_path: Path) -> None:
    take_seat(tmp_path, 0, 2)
    (tmp_path / MARK).write_bytes(b"{}")
    with pytest.raises(StoreDamaged, match=MARK):
        take_seat(tmp_path, 0, 2)


def test_each_service_of_one_command_has_ports_a_name_and_a_folder_of_its_own() -> None:
    whole = SyncSettings(shards=3, port=0, advertise="box:7000", token="secret")
    ours = [settings_of(whole, index) for index in range(3)]
    assert [one.own_name for one in ours] == ["sync-0", "sync-1", "sync-2"]
    assert [one.port for one in ours] == [0, 0, 0]
    assert [one.health_port for one in ours] == [50052, 50062, 50072]
    assert [one.advertise for one in ours] == ["box:7000", "box:7010", "box:7020"]
    assert len({one.data for one in ours}) == 3
    assert {one.parent for one in ours} == {os.getpid()}
    with pytest.raises(ConfigError, match="lower ports"):
        settings_of(whole.model_copy(update={"metrics_port": 65530}), 1)


@pytest.mark.parametrize(
    ("given", "two"),
    [
        ({"port": 50052}, "--port and --health-port are both 50052"),
        ({"port": 9101}, "--port and --metrics-port are both 9101"),
        ({"metrics_port": 50052}, "--health-port and --metrics-port are both 50052"),
    ],
)
def test_two_doors_with_one_port_are_told_apart_from_a_port_in_use(
    given: dict[str, int], two: str
) -> None:
    with pytest.raises(ValidationError, match=f"{two}, and each needs a port of its own"):
        SyncSettings.model_validate(given)
    assert SyncSettings(port=0, health_port=0, metrics_port=0)


def test_services_of_one_command_are_refused_each_others_ports(tmp_path: Path) -> None:
    both = "--health-port of sync-0 and --port of sync-2 would both be 50071"
    with pytest.raises(ConfigError, match=both):
        asyncio.run(supervise(SyncSettings(shards=3, health_port=50071, data=tmp_path / "no")))
    assert not (tmp_path / "no").exists()


def test_a_child_reads_the_very_settings_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings_of(SyncSettings(shards=2, token="secret", log_json=True), 1)
    for name, value in environment(given).items():
        monkeypatch.setenv(name, value)
    assert SyncSettings() == given


@pytest.mark.parametrize("given", [{"shards": 2, "index": 2}, {"shards": 0}, {"index": -1}])
def test_a_seat_that_is_none_is_refused(given: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        SyncSettings.model_validate(given)


def test_an_index_may_be_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "sync-1")
    monkeypatch.setenv("SYNCLINE_SYNC_INDEX", "host")
    monkeypatch.setenv("SYNCLINE_SYNC_SHARDS", "2")
    assert str(SyncSettings().seat) == "1 of 2"
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    with pytest.raises(ValidationError, match="does not end in -NUMBER"):
        SyncSettings()
