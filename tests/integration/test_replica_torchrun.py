"""A script of one's own under torchrun, with FSDP2, beside a replica of one rank."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from syncline.launch.processes import Command, Crew, Process
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, published
from syncline_testing.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing else ends with us")

WAIT_S = 100.0
RUN = "beside"
SETTINGS: dict[str, Any] = {
    **QUICK,
    "expected_replicas": 2,
    "token_budget": 60 * STEP_TOKENS,
    "timeouts": {"lease": 20.0, "round_deadline": 60.0},
}

SCRIPT = """
import json, os, sys, torch, syncline
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from syncline_testing.replicas import TinyModel, batch, loss_of

run, settings, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
model = TinyModel(seed=7)
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
batches = (batch(7, step) for step in range(10_000))
with syncline.Replica(model, optimizer, run=run, name="pair", settings=settings) as replica:
    for tokens in replica.shard(batches):
        loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
whole = {name: p.full_tensor().contiguous() for name, p in model.state_dict().items()}
if dist.get_rank() == 0:
    save_file(whole, out)
dist.destroy_process_group()
# Threads of gloo outlive their group; before Python 3.14 one that still lets go of a tensor while
# the interpreter ends makes a SIGABRT of it.
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def torchrun(crew: Crew, folder: Path, cluster: Cluster, *arguments: str) -> Process:
    """The script on two ranks."""
    script = folder / "own_loop.py"
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {
        "SYNCLINE_CONTROL": cluster.control_url,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    argv = [sys.executable, *launch, str(script), *arguments]
    return crew.start(Command(name="torchrun", argv=argv, folder=folder, env=env))


@pytest.mark.long
@pytest.mark.timeout(240)
def test_ranks_of_torchrun_end_well_with_the_parameters_of_all(
    cluster: Cluster, tmp_path: Path
) -> None:
    saved = tmp_path / "pair.safetensors"
    with Crew() as crew:
        pair = torchrun(crew, tmp_path, cluster, RUN, json.dumps(SETTINGS), str(saved))

        def trains() -> bool:
            assert pair.exit_code is None, pair.failure().message
            answer = cluster.http.get(f"/runs/{RUN}")
            return answer.is_success and answer.json()["replicas_alive"] == 1

        wait_until(trains, WAIT_S, "the pair has joined")
        single = Trial(cluster.control_url, RUN, 0, settings=SETTINGS, name="single")
        with joined(single):
            single.step(10_000)
        wait_until(lambda: pair.exit_code is not None, WAIT_S, "torchrun ends")
        assert pair.exit_code == 0, pair.failure().message
    values, revision = published(cluster.sync_address, RUN)
    assert revision == single.replica.revision > 2
    theirs = load_file(saved)
    for name, value in single.parameters().items():
        assert torch.equal(value, torch.from_numpy(values[name])), name
        assert torch.equal(value, theirs[name]), name
    assert cluster.get(f"/runs/{RUN}")["state"] == "finished"
    last: list[Any] = []

    def is_told() -> bool:
        rounds = cluster.get(f"/runs/{RUN}/rounds")
        last[:] = [one for one in rounds if one["revision"] == revision]
        return bool(last)

    wait_until(is_told, 20, "the last round is told")
    for one in last:
        assert {c["replica"] for c in one["contributions"]} == {"pair", "single"}
    assert "Traceback" not in (tmp_path / "torchrun.log").read_text()
