"""Ranks share what rank 0 makes, and what it raises: nobody waits for what will not come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from syncline_proto.errors import ProcessFailed, RunConflict

RANK = """
import json, sys
from datetime import timedelta
import torch.distributed as dist
from syncline.ranks import Ranks
from syncline_proto.errors import RunConflict, SynclineError

store, rank, raised = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
wait = timedelta(seconds=60)
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=wait)
ranks = Ranks(alone_s=60.0)


def make():
    raise raised


told = []
try:
    ranks.share(make)
except SynclineError as error:
    told.append([error.code, error.message, error.setting])
except BaseException as error:
    told.append([type(error).__name__, str(error)])
told.append(ranks.share(lambda: {"after": rank}))
ranks.close()
dist.destroy_process_group()
print(json.dumps(told))
"""


def told(folder: Path, raised: str) -> list[list[Any]]:
    """What each of two ranks hears where rank 0 raises, and then makes something."""
    store = (folder / "store").as_uri()
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, store, str(rank), raised],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for rank in range(2)
    ]
    try:
        ends = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], ends
    return [json.loads(out) for out, _ in ends]


def test_an_error_of_ours_is_raised_on_all_ranks(tmp_path: Path) -> None:
    heard = [RunConflict.code, "It has ended.", "control"]
    both = told(tmp_path, "RunConflict('It has ended.', 'control')")
    assert both == [[heard, {"after": 0}]] * 2


@pytest.mark.parametrize(
    ("raised", "own"),
    [
        ("ValueError('odd')", ["ValueError", "odd"]),
        ("KeyboardInterrupt()", ["KeyboardInterrupt", ""]),
    ],
)
def test_any_other_end_of_rank_0_is_told_to_the_others(
    tmp_path: Path, raised: str, own: list[str]
) -> None:
    """Without the word they would take what comes next for it, or wait."""
    first, other = told(tmp_path, raised)
    assert first == [own, {"after": 0}]
    (code, message, _), after = other
    assert code == ProcessFailed.code and "see its log" in message
    assert after == {"after": 0}
