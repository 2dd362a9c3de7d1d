"""A replica that is started goes on from its checkpoint wherever the trainer would find one.

Otherwise the trainer refuses to begin anew beside it. No process is started.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from syncline.launch.commands import Place
from syncline.launch.keeper import Keeper
from syncline.launch.plan import plan_up

JOB = """
[run]
name = "tiny"
token_budget = 10_000
[model]
config = { model_type = "llama" }
[data]
source = ["builtin"]
"""


@pytest.mark.parametrize(
    ("kept", "is_one"),
    [
        ("step-0000000003", True),
        (".step-0000000003.before", True),  # its successor of the same step was cut off
        (".step-0000000003.writing", False),
        ("step-of-mine", False),
    ],
)
def test_what_an_earlier_life_left_is_taken_up(tmp_path: Path, kept: str, is_one: bool) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    launch = plan_up(str(tmp_path / "job.toml"), str(tmp_path), [], None, 3, None)
    assert launch.job.checkpoint.folder is not None
    (launch.job.checkpoint.folder / "tiny" / "replica-0" / kept).mkdir(parents=True)
    started = list[Any]()
    crew: Any = SimpleNamespace(start=started.append)
    keeper = Keeper(launch, Place(folder=tmp_path, control_port=1, syncs=()), crew, crew)
    keeper.start_replicas(["replica-0", "replica-1"])
    assert ["--resume" in command.argv for command in started] == [is_one, False]
