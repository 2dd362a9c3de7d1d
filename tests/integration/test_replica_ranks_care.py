"""The ranks of one replica do alike where it joins late, leaves steps out, or comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, phases
from syncline_testing.sleeping import LEASE_S
from syncline_testing.training import STEP_TOKENS as TRAINED_TOKENS
from syncline_testing.training import tiny_job
from syncline_testing.waiting import wait_until
from syncline_testing.warm import warm_ranks

HEAD = """
import json, sys
from types import SimpleNamespace
from unittest.mock import patch

import httpx
import torch
import torch.distributed as dist

from syncline.council import Council
from syncline.interrupts import end
from syncline.layout import local_part, whole
from syncline_testing.replicas import published
from syncline_testing.sleeping import sleeps

control, sync, given = json.loads(sys.argv[1])
torch.set_num_threads(1)
told = Council._told
# Ranks talk of each fragment by itself, as where results come one after another.
patch.object(Council, "_told", lambda self, mine, beside: told(self, mine, {})).start()
cluster = SimpleNamespace(
    control_url=control, get=lambda path: httpx.get(f"{control}/v1{path}").json())

def off(model, run):
    values, _ = published(sync, run)
    return max(float((whole(p) - torch.from_numpy(values[name])).abs().max())
        for name, p in model.named_parameters())
"""

CARE = (
    HEAD
    + """
from torch.distributed.fsdp import fully_shard
from syncline_testing.careful import Loop, batches
from syncline_testing.replicas import TinyModel

dist.init_process_group("gloo")
rank, left = dist.get_rank(), {}

class Both(Loop):
    def at_step(self, number):
        if (self.replica.run, number) in (("care-shard", 2), ("care-leased", 2)) and rank == 0:
            sleeps(cluster, self.replica)
        if (self.replica.run, number) in (("care-shard", 6), ("care-leased", 6)):
            self.replica.request_drain()

    def before_step(self, number):
        if (self.replica.run, number, rank) == ("care-odd", 2, 1):  # of its own part alone
            local_part(self.model.norm.weight.grad).fill_(torch.nan)

for run, settings in given.items():
    model = TinyModel(1)
    for part in (*model.blocks, model):
        fully_shard(part)
    loop = Both(control, run, model=model, settings=settings, name="pair", join_ramp_steps=4)
    if run == "care-odd" and rank == 1:
        loop.odd_at = (1, 7, 8, 9)
    with loop.replica as replica:
        own = replica.shard(batches(22 if run == "care-odd" else 14))
        if run == "care-leased":
            own = replica.leased(list(torch.cat(batches(14))), batch_size=4)
        values = loop.pass_over(own)
    left[run] = {"values": values, "rates": loop.rates, "steps": replica.inner_step,
        "tokens": replica.committed_tokens, "life": replica.incarnation, "off": off(model, run)}
print(json.dumps(left))
dist.destroy_process_group()
end(0)
"""
)

RETURNS = (
    HEAD
    + """
from torch.distributed.fsdp import fully_shard
from syncline_testing.replicas import TinyModel, Trial
from syncline_proto.errors import LeaseLost, ProcessFailed

dist.init_process_group("gloo")
rank, left = dist.get_rank(), {}
for run, settings in given.items():
    model = TinyModel(1)
    for part in (*model.blocks, model):
        fully_shard(part)
    trial = Trial(control, run, 1, model=model, settings=settings, name="pair")
    replica, lives = trial.replica, []
    while True:
        try:
            with replica:
                trial.step(2)
                if replica.incarnation == 1:
                    if rank == 0:
                        sleeps(cluster, replica)
                    trial.step(1)
            lives.append([replica.incarnation, replica.inner_step])
            break
        except LeaseLost:
            trial.optimizer.zero_grad()
            lives.append([replica.incarnation, replica.inner_step])
            if run == "asked" and rank == 1:
                replica.request_drain()
            if run == "gone" and rank == 1:
                print(json.dumps(left), flush=True)
                end(0)
            try:
                if not replica.may_return():
                    break
            except ProcessFailed:
                lives.append("gone")
                break
    left[run] = lives, replica.committed_tokens, off(model, run) if run == "back" else 0.0
print(json.dumps(left))
dist.destroy_process_group()
end(0)
"""
)

PHASE = (
    HEAD
    + """
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from syncline_testing.replicas import TinyModel, Trial
from syncline_testing.waiting import wait_until

dist.init_process_group("gloo")
rank, left, (folder, run, settings) = dist.get_rank(), [], given
model = TinyModel(1)
for part in (*model.blocks, model):
    fully_shard(part)
trial = Trial(control, run, 1, model=model, settings=settings, name="pair")
with trial.replica as replica:
    for number, count in enumerate((1, 1, 3)):
        (Path(folder) / f"is-at-{number}-{rank}").touch()
        wait_until(lambda: (Path(folder) / f"go-{number}").exists(), 60, "it may go on")
        trial.step(count)
        is_new = not trial.optimizer.state
        left.append((replica.inner_step, replica.phase, replica.revision, is_new))
print(json.dumps([left, off(model, run)]))
dist.destroy_process_group()
end(0)
"""
)

TRAINER = (
    HEAD
    + """
from transformers import AutoModelForCausalLM
from syncline.train.config import JobConfig
from syncline.train.export import full_state
from syncline.train.loop import Trainer
from syncline.train.ranks import joined_ranks
from syncline_testing.training import Recorder

class Sleeper(Trainer):
    # Its lease runs out amid a forward pass: what the first block needs is merged, the rest not.
    amid = back = None

    def _begin(self):
        super()._begin()
        self.model.model.layers[0].register_forward_pre_hook(self._sleep)

    def _sleep(self, *_):
        pending = self.replica._session._rounds._pending
        if self.amid is None and pending and torch.is_grad_enabled():
            self.amid = sorted(pending)
            if self.ranks.first:
                sleeps(cluster, self.replica)

    def _go_on(self):
        super()._go_on()
        tokens = torch.arange(32)[None]
        plain = AutoModelForCausalLM.from_config(self.model.config)
        plain.load_state_dict(full_state(self.model), strict=False)
        with torch.no_grad():
            apart = (self.model(tokens).logits - plain(tokens).logits).abs().max()
        self.back = off(self.model, self.replica.run), float(apart)

with joined_ranks(mixed_precision=False) as ranks:
    trainer = Sleeper(JobConfig.checked(given, "job"), ranks, Recorder(), replica="pair")
    ending = trainer.run()
    print(json.dumps({"amid": trainer.amid, "back": trainer.back, "why": ending.reason,
        "life": trainer.replica.incarnation, "off": off(trainer.model, trainer.replica.run)}))
end(0)
"""
)


def in_two_ranks(
    cluster: Cluster, text: str, given: Any, meanwhile: Callable[[], None] = lambda: None
) -> list[Any]:
    """What each of the ranks tells."""
    told = json.dumps([cluster.control_url, cluster.sync_address, given])
    with warm_ranks("-c", text, told, SYNCLINE_CONTROL=cluster.control_url) as ranks:
        meanwhile()
        ends = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in ends]


@pytest.mark.long
def test_ranks_that_take_care_do_alike(cluster: Cluster) -> None:
    alone: dict[str, Any] = {**QUICK, "min_replicas": 1}
    asleep = {"sync_every": 100, "timeouts": {"lease": LEASE_S, "round_deadline": 20.0}}
    runs = {"care-ramp": alone, "care-odd": alone}
    runs |= dict.fromkeys(("care-shard", "care-leased"), alone | asleep)
    first = Trial(cluster.control_url, "care-ramp", 0, settings=alone)
    with joined(first):
        first.step(5)
    both = in_two_ranks(cluster, CARE, runs)
    assert both[0] == both[1]
    tokens, (left, _) = 2 * (STEP_TOKENS + 4), both
    assert {run: one["off"] for run, one in left.items()} == dict.fromkeys(runs, 0.0)
    assert left["care-ramp"]["rates"] == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5]
    odd, values = left["care-odd"], left["care-odd"]["values"]
    assert values[1] == values[2] == values[3] != values[4]
    assert values[6] != values[7] == values[8] == values[9] != values[10]
    assert (odd["steps"], odd["tokens"]) == (6, 5 * tokens), "a step since the round is forgotten"
    for run in ("care-shard", "care-leased"):
        one, values = left[run], left[run]["values"]
        assert (one["life"], one["steps"], one["tokens"]) == (2, 4, 4 * tokens)
        assert values[3] == values[0] != values[2], "the run's, which has no round"


@pytest.mark.long
def test_a_loop_of_several_ranks_starts_again_where_they_may_all_return(cluster: Cluster) -> None:
    """One that is asked to leave meanwhile is enough that none does, and so is one that is gone."""
    asleep = {"sync_every": 100, "timeouts": {"lease": LEASE_S, "round_deadline": 20.0}}
    runs = dict.fromkeys(("back", "asked", "gone"), {**QUICK, "min_replicas": 1} | asleep)
    both = in_two_ranks(cluster, RETURNS, runs)
    assert both[0].pop("gone") == [[[1, 3], "gone"], 0, 0.0]
    assert both[0] == both[1]
    assert both[0]["back"] == [[[1, 3], [2, 2]], 2 * 2 * STEP_TOKENS, 0.0]
    assert both[0]["asked"] == [[[1, 3]], 0, 0.0]


@pytest.mark.long
def test_ranks_that_train_by_a_job_come_back_with_the_parameters_of_the_run(
    cluster: Cluster, data: Path
) -> None:
    run = {
        "name": "slept",
        "sync_every": 4,
        "min_replicas": 1,
        "token_budget": 2 * 24 * TRAINED_TOKENS,
        "timeouts": {"lease": LEASE_S, "round_deadline": 20.0},
    }
    both = in_two_ranks(cluster, TRAINER, tiny_job(data, steps=24, run=run).to_job())
    assert both[0] == both[1]
    assert both[0]["amid"] == [2, 3], "what comes after the first block is to be merged"
    assert both[0]["back"] == [0.0, pytest.approx(0.0, abs=1e-5)]
    assert (both[0]["life"], both[0]["why"], both[0]["off"]) == (2, "budget", 0.0)


@pytest.mark.long
def test_ranks_take_part_anew_in_a_synchronous_phase_that_was_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    """They have come late for its first step, and who was in it leaves before they are."""
    timeouts = {"lease": 1.5, "round_deadline": 2.0}
    settings = {**QUICK, "warmup_steps": 3, "timeouts": timeouts}
    other = Trial(cluster.control_url, "phase", 0, settings=settings)

    def are_at(number: int) -> Callable[[], bool]:
        return lambda: len(list(tmp_path.glob(f"is-at-{number}-*"))) == 2

    def meanwhile() -> None:
        wait_until(are_at(0), 60, "the pair has joined")
        with joined(other):
            other.step(1)
            (tmp_path / "go-0").touch()
            wait_until(are_at(1), 60, "the pair has the mean")
            other.step(1)
        wait_until(lambda: phases(cluster.sync_address, "phase") == {1}, 20, "it starts again")
        for number in (1, 2):
            (tmp_path / f"go-{number}").touch()

    both = in_two_ranks(cluster, PHASE, [str(tmp_path), "phase", settings], meanwhile)
    assert both[0] == both[1]
    left, off = both[0]
    assert left == [[1, "warm-up", 0, False], [1, "warm-up", 0, True], [4, "training", 1, False]]
    assert off == 0.0
