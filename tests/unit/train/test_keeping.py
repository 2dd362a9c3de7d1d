"""Whose name is made up of a process hears of the checkpoints that it would not find."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from syncline.train.keeping import Keeping
from syncline.train.ranks import RankGroup
from syncline_proto.errors import ConfigError
from syncline_testing.training import tiny_job
from syncline_testing.two_ranks import two_ranks


def keeping(folder: Path, own: str, *, is_new: bool, is_named: bool) -> Keeping:
    job = tiny_job(folder, steps=1, checkpoint={"folder": folder})
    return Keeping(job, own, RankGroup(), is_new=is_new, is_named=is_named)


def test_ranks_keep_their_checkpoints_under_one_name(tmp_path: Path) -> None:
    act = """
from syncline.train.ranks import RankGroup
print(RankGroup(index=rank, count=2).word(f"box-{rank}"))
"""
    assert two_ranks(tmp_path, act) == ["box-0"] * 2


@pytest.mark.parametrize("is_new", [True, False])
def test_a_made_up_name_is_no_matter_in_a_folder_of_its_own(tmp_path: Path, is_new: bool) -> None:
    (tmp_path / "tiny" / "box-1").mkdir(parents=True)
    with capture_logs() as logs:
        keeping(tmp_path, "box-7", is_new=is_new, is_named=False)
    assert not logs


def test_a_made_up_name_that_finds_none_is_told_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "tiny" / "box-1" / "step-0000000003").mkdir(parents=True)
    says = f"no checkpoint of box-7 in {tmp_path}/tiny; there are: box-1"
    with pytest.raises(ConfigError) as refused:
        keeping(tmp_path, "box-7", is_new=False, is_named=False)
    assert refused.value.message.startswith(f"{says}; set SYNCLINE_REPLICA or --replica to one")
    with capture_logs() as logs:
        keeping(tmp_path, "box-7", is_new=True, is_named=False)
        keeping(tmp_path, "box-7", is_new=False, is_named=True)
        keeping(tmp_path, "box-1", is_new=False, is_named=False)
    assert [entry["why"] for entry in logs] == [says]
