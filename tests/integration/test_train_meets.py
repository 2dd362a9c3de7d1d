"""Ranks that were started by hand: one that ends while it loads, or never comes, ends all of them.

No launcher sees to that here, and nobody waits for who is gone.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from syncline.ranks import GONE
from syncline.train.config import JobConfig
from syncline_proto.errors import ProcessFailed, Unreachable
from syncline_testing.cluster import free_ports
from syncline_testing.training import LLAMA, SEQUENCE, tiny_job, to_toml
from syncline_testing.waiting import wait_until
from syncline_testing.warm import warm, warm_ranks

END_S = 60.0
NOBODY = "http://127.0.0.1:1"
"""A control plane that is never asked: they end before that."""

MINE = """
import os, time
from pathlib import Path

import torch

def data(split, length, rank):
    if os.environ["RANK"] == str(rank):
        Path(os.environ["LOADING"]).touch()
        time.sleep(1000)
    return [{"input_ids": (torch.arange(length) + row) % 61} for row in range(64)]

def model(width):
    return Model(width)

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(61, width), torch.nn.Linear(width, 61)

    def forward(self, input_ids):
        logits = self.head(self.embed(input_ids[:, :-1])).flatten(0, 1)
        return {"loss": torch.nn.functional.cross_entropy(logits, input_ids[:, 1:].flatten())}
"""

TRAIN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from syncline.interrupts import end
from syncline.train import ranks
from syncline.train.__main__ import main

ranks.MEET_S = float(sys.argv.pop(1))
end(main(sys.argv[1:]))
"""

FOR_LONG, SHORT = "1000", "1"
"""How long they wait for one another to start."""


def arguments(folder: Path, wait: str, slow: int, *, own: bool = False) -> list[str]:
    """A program that trains; the rank ``slow`` loads data for ever.

    ``own``: a model of the user's own, on which ranks try a batch ahead of all else.
    """
    (folder / "mine.py").write_text(MINE)
    kept = {"config": {**LLAMA, "vocab_size": 64}}
    mine = {"factory": "mine:model", "arguments": {"width": 16}}
    data = {"factory": "mine:data", "arguments": {"rank": slow}, "sequence_length": SEQUENCE}
    job = {**tiny_job(folder, steps=2).to_job(), "model": mine if own else kept, "data": data}
    path = folder / "job.toml"
    path.write_text(to_toml(JobConfig.checked(job, "job")))
    return ["-c", TRAIN, str(folder), wait, str(path), "--progress", "none"]


@pytest.mark.parametrize("where", ["alone", "own", "run"])
@pytest.mark.parametrize("gone", [1, 0])
def test_who_ends_while_it_loads_ends_the_others(tmp_path: Path, where: str, gone: int) -> None:
    loading = tmp_path / "loading"
    control = NOBODY if where == "run" else ""
    argv = arguments(tmp_path, FOR_LONG, gone, own=where == "own")
    with warm_ranks(*argv, LOADING=str(loading), SYNCLINE_CONTROL=control) as ranks:
        wait_until(loading.exists, END_S, "it loads its data")
        ranks[gone].send_signal(signal.SIGTERM)
        assert ranks[gone].wait(END_S) == -signal.SIGTERM
        _, said = ranks[1 - gone].communicate(END_S)
        assert ranks[1 - gone].returncode == ProcessFailed.exit_code, said
    spoken = [line for line in said.splitlines() if line.startswith("error: ")]
    assert spoken == ([f"error: {GONE}"] if gone else []), "of several rank 0 alone speaks"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_who_starts_without_the_others_ends_in_a_sentence(tmp_path: Path, rank: str) -> None:
    (port,) = free_ports(1)
    with warm(
        *arguments(tmp_path, SHORT, 0),
        LOADING=str(tmp_path / "loading"),
        RANK=rank,
        LOCAL_RANK=rank,
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    ) as program:
        _, said = program.communicate(END_S)
    assert program.returncode == Unreachable.exit_code, said
    (spoken,) = (line for line in said.splitlines() if line.startswith("error: "))
    met = f"error: The 2 ranks of this replica have not met at 127.0.0.1:{port} ("
    assert spoken.startswith(met) and "start all of them again." in spoken
