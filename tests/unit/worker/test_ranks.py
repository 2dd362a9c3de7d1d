"""Ranks share what rank 0 makes, and what it raises: nobody waits for what will not come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from syncline.ranks import GONE
from syncline_proto.errors import ProcessFailed, RunConflict
from syncline_testing.two_ranks import two_ranks
from syncline_testing.warm import warm_ranks

ACT = """
import json
from syncline_proto.errors import RunConflict, SynclineError

def make():
    raise RAISED

told = []
try:
    ranks.share(make)
except SynclineError as error:
    told.append([error.code, error.message, error.setting])
except BaseException as error:
    told.append([type(error).__name__, str(error)])
told.append(ranks.share(lambda: {"after": rank}))
print(json.dumps(told))
"""

ALONE = """
import os, signal, threading
from syncline_proto.errors import ProcessFailed

if rank == 0:
    try:
        Ranks(alone_s=1.0)
    except ProcessFailed as error:
        print(error.message)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        Ranks(alone_s=1e6)
    except KeyboardInterrupt:
        print("It was heard.", flush=True)
ranks.sum(0)
"""

WITHOUT_FIRST = """
import sys, time
import torch.distributed as dist
from syncline.interrupts import end
from syncline.ranks import Ranks
from syncline_proto.errors import ProcessFailed

dist.init_process_group("gloo")
rank, joined = dist.get_rank(), sys.argv[1] == "joined"
ranks = Ranks() if joined else None
print("is here", flush=True)
if rank == 0:
    time.sleep(1000)
try:
    (ranks or Ranks()).sum(0)
except ProcessFailed as error:
    print(error.message, flush=True)
    end(error.exit_code)
"""


def told(folder: Path, raised: str) -> list[list[Any]]:
    """What each of two ranks hears where rank 0 raises, and then makes something."""
    return [json.loads(said) for said in two_ranks(folder, ACT.replace("RAISED", raised))]


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


def test_who_waits_for_ranks_to_meet_hears_ctrl_c_and_gives_up_in_time(tmp_path: Path) -> None:
    alone, other = two_ranks(tmp_path, ALONE)
    assert alone.splitlines() == [GONE, "It was heard."]
    assert not other


@pytest.mark.parametrize("when", ["joining", "joined"])
def test_who_waits_ends_where_rank_0_and_its_store_are_gone(when: str) -> None:
    """While they join, it is the store that is waited at; later on the ranks talk by themselves."""
    with warm_ranks("-c", WITHOUT_FIRST, when) as ranks:
        for rank in ranks:
            assert rank.stdout is not None and rank.stdout.readline() == "is here\n"
        ranks[0].kill()
        said, errors = ranks[1].communicate(timeout=60)
    assert (said.strip(), ranks[1].returncode) == (GONE, ProcessFailed.exit_code), errors
