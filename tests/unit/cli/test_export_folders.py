"""A folder that cannot be exported to, or sampled from, is told of before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from syncline.cli.app import run
from syncline.cli.train import check_out
from syncline.train.exported import PARAMETERS, Origin
from syncline.train.plain import write_parameters
from syncline_proto.manifest import MANIFEST
from syncline_sync.pins import pin_folder
from syncline_sync.process import _taken_up
from syncline_sync.settings import SyncSettings
from syncline_sync.store import RunStore


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code, and all that was said; none of it is that something is being loaded."""
    code = run(list(words))
    text = " ".join(capsys.readouterr().err.split())
    assert "Loading" not in text
    return code, text


def test_a_sample_of_parameters_alone_is_told_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parameters({"weight": torch.zeros(2)}, tmp_path, Origin(run="mine"))
    code, text = said(capsys, "sample", str(tmp_path))
    assert code == 10
    assert "the parameters of a run of one's own loop" in text
    assert PARAMETERS in text and "docs/checkpoints.md" in text and "syncline export" not in text


def test_a_sample_of_a_folder_without_a_model_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "sample", str(tmp_path / "gone"))
    assert code == 12 and "There is no folder" in text
    code, text = said(capsys, "sample", str(tmp_path))
    assert code == 12 and "holds no model; export one with: syncline export RUN --out" in text


@pytest.mark.parametrize("command", [("export", "my-run"), ("checkpoints", "export", "/k/my-run")])
def test_a_place_that_takes_no_export_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    (tmp_path / "job.toml").touch()
    code, text = said(capsys, *command, "--out", str(tmp_path / "job.toml"))
    assert code == 10 and "job.toml: it is a file; choose a folder." in text
    code, text = said(capsys, *command, "--out", str(tmp_path / "job.toml" / "below"))
    assert code == 10 and "Not a directory; choose a folder that can be written." in text
    (tmp_path / "config.json").touch()
    code, text = said(capsys, *command, "--out", str(tmp_path))
    assert code == 10 and "holds a model already; choose another, or --overwrite." in text


@pytest.mark.parametrize("command", [("export", "my-run"), ("checkpoints", "export", "/k/my-run")])
def test_an_empty_place_is_not_the_folder_one_is_in(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = said(capsys, *command, "--out", "")
    assert code == 10 and "--out is empty; name a folder." in text


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_checkpoint_takes_no_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    (tmp_path / MANIFEST).touch()
    code, text = said(capsys, "export", "my-run", "--out", str(tmp_path), *more)
    assert code == 10 and "is a checkpoint; choose another folder." in text


@pytest.mark.parametrize("command", [("export", "my-run"), ("checkpoints", "export", "/k/my-run")])
@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_store_of_a_sync_service_takes_no_export(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    more: tuple[str, ...],
) -> None:
    with _taken_up(SyncSettings(data=tmp_path / "data")):
        own = RunStore(tmp_path / "data", "my-run").folder
        pinned = pin_folder(tmp_path / "data")
        (tmp_path / "link").symlink_to(tmp_path / "data")
        for place in (own, own.parent, own / "deep" / "er", pinned, tmp_path / "link/runs/new"):
            code, text = said(capsys, *command, "--out", str(place), *more)
            assert code == 10 and f"folder {place} is in the store of a sync service;" in text
        assert not own.parent.exists()


def test_folders_named_like_those_of_a_store_may_be_exported_to(tmp_path: Path) -> None:
    check_out(str(tmp_path / "runs" / "one"), overwrite=False)
    with _taken_up(SyncSettings(data=tmp_path)):
        check_out(str(tmp_path / "model"), overwrite=False)


def test_where_there_are_no_checkpoints_is_told_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["checkpoints", "ls", "."]) == 0
    assert str(tmp_path.resolve()) in "".join(capsys.readouterr().out.split("\n"))


def test_a_place_that_was_asked_for_is_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a" / "b"
    code, text = said(capsys, "checkpoints", "export", str(tmp_path / "gone"), "--out", str(out))
    assert code == 42 and "is not there" in text
    nobody = ("--control", "http://127.0.0.1:9")
    code, text = said(capsys, "export", "my-run", "--out", str(out), *nobody)
    assert code == 30 and "does not answer" in text
    assert not list(tmp_path.iterdir())
