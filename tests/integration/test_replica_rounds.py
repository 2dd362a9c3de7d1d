"""Rounds of real replicas through the real services: what everyone holds afterwards."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from syncline.carrier import Direct
from syncline.core.barren import BARREN_MAX
from syncline.exchange import PUSHES_MAX
from syncline.link import Link
from syncline.pulled import Pulled
from syncline_proto.errors import ConfigError, TrainingDiverged
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    TinyModel,
    Trial,
    batch,
    joined,
    loss_of,
    published,
    together,
)
from syncline_testing.scraped import lateness
from syncline_testing.waiting import wait_until

TWO = {**QUICK, "min_replicas": 2}
AVERAGE = {**TWO, "strategy": "local-sgd"}

Values = dict[str, Tensor]


def trials(cluster: Cluster, run: str, settings: dict[str, Any], count: int = 2) -> list[Trial]:
    return [Trial(cluster.control_url, run, seed, settings=settings) for seed in range(count)]


def is_in(cluster: Cluster, run: str, replica: str) -> bool:
    """Whether a replica's pushes of the open rounds are in."""
    with grpc.insecure_channel(cluster.sync_address) as channel:
        stub = sync_pb2_grpc.SyncServiceStub(channel)
        answer = stub.GetRunStatus(pb.GetRunStatusRequest(run=run), timeout=10)
    return all(replica in fragment.arrived for fragment in answer.fragments)


def round_of(trial: Trial) -> tuple[Values, Values]:
    """Step to the next boundary; the parameters before and after the merge."""
    trial.step(4)
    before = trial.parameters()
    trial.replica.finish()
    return before, trial.parameters()


@pytest.mark.parametrize("down", ["fp32", "bf16", "int8"])
def test_after_a_round_everyone_holds_the_published_value_bit_for_bit(
    cluster: Cluster, down: str
) -> None:
    run = f"exact-{down}"
    a, b = trials(cluster, run, {**TWO, "codec": {"up": "bf16", "down": down}})
    with joined(a, b):
        together(lambda: round_of(a), lambda: round_of(b))
        values, revision = published(cluster.sync_address, run)
        assert revision == a.replica.revision == b.replica.revision == 1
        for name, value in a.parameters().items():
            assert np.array_equal(value.numpy(), values[name])
            assert torch.equal(value, b.parameters()[name])
        assert a.replica.committed_tokens == 8 * STEP_TOKENS


def test_one_replica_alone_in_its_run_moves_by_no_more_than_an_ulp(cluster: Cluster) -> None:
    (trial,) = trials(cluster, "ulp", {**QUICK, "strategy": "local-sgd"}, count=1)
    with joined(trial):
        anchor = trial.parameters()
        for _ in range(4):
            before, after = round_of(trial)
            for name, synced in after.items():
                largest = torch.maximum(anchor[name].abs(), before[name].abs()).numpy()
                moved = np.abs(synced.double().numpy() - before[name].double().numpy())
                assert (moved <= np.spacing(largest)).all()
            anchor = after
        assert trial.replica.stats.rounds == 4


def test_with_plain_settings_a_round_is_the_average(cluster: Cluster) -> None:
    a, b = trials(cluster, "average", AVERAGE)
    with joined(a, b):
        (mine, after), (theirs, _) = together(lambda: round_of(a), lambda: round_of(b))
        for name, value in after.items():
            torch.testing.assert_close(value, (mine[name] + theirs[name]) / 2)


@pytest.mark.parametrize("overlap", [0, 2])
def test_who_goes_on_without_memory_for_a_merge_has_it_at_the_next_forward_pass(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, overlap: int
) -> None:
    """It trains as who had the memory: nothing is lost, and nothing counts twice."""
    write, ends = "shift" if overlap else "put", []
    kept = getattr(Direct, write)

    def full(self: Direct, tensors: Sequence[Tensor], *rest: Any) -> None:
        monkeypatch.setattr(Direct, write, kept)
        if not overlap:
            kept(self, tensors[:1], *rest)  # the first of a fragment's is written already
        raise torch.OutOfMemoryError("no memory is left")

    how = {**QUICK, "strategy": "local-sgd", "overlap_steps": overlap}
    for is_full in (False, True):
        (trial,) = trials(cluster, f"full-{overlap}-{is_full}".lower(), how, count=1)
        with joined(trial):
            trial.step(4 + overlap)
            if is_full:
                monkeypatch.setattr(Direct, write, full)
                with pytest.raises(torch.OutOfMemoryError):
                    trial.step(1)
            trial.step(8 - overlap)
            trial.replica.finish()
            assert trial.replica.revision == 3 and trial.replica.stats.stale == 0
            ends.append(trial.parameters())
            counted = 12 + is_full  # the loop counted a batch that failed, too
            assert trial.replica.committed_tokens == counted * STEP_TOKENS
    for name, value in ends[0].items():
        assert torch.equal(ends[1][name], value), name


def test_a_loop_that_writes_parameters_itself_lets_copies_of_them_end_first(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Direct] = []

    def before_step(self: Direct) -> None:
        told.append(self)

    monkeypatch.setattr(Direct, "before_step", before_step)
    (trial,) = trials(cluster, "writes", QUICK, count=1)
    with joined(trial, Trial(None, "any", 0)):
        trial.replica.before_write()
        assert len(told) == 1
        trial.step()
        assert len(told) == 2, "as before an optimizer's step"


def test_a_late_replica_moves_its_progress_and_is_in_the_next_round(cluster: Cluster) -> None:
    settings = {**AVERAGE, "min_replicas": 1}
    early, late = trials(cluster, "late", settings)
    with joined(early, late):
        start = late.parameters()
        _, anchor = round_of(early)  # closes with the early one alone: the late one is not expected
        late.step(4)
        progress = {name: value - start[name] for name, value in late.parameters().items()}
        # The late one now waits for the next round, which the early one must close.
        waiting = threading.Thread(target=late.replica.finish)
        waiting.start()
        wait_until(lambda: _has_arrived(cluster, "late", 1), 20, "all fragments are in round 2")
        mine, after = round_of(early)
        waiting.join(20)
        assert late.replica.stats.stale == 4
        assert lateness(late.replica) == {"stale_pushes_total": 4}
        for name, value in late.parameters().items():
            assert torch.equal(value, after[name])
            expected = anchor[name] + (mine[name] - anchor[name] + progress[name]) / 2
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


def test_a_late_eager_replica_has_taken_nothing_ahead(cluster: Cluster) -> None:
    """What it moved by for a push that did not count is undone, and all of it is pushed again."""
    outer = {"lr": 0.5, "momentum": 0.0, "clip": None}
    settings = {**AVERAGE, "min_replicas": 1, "overlap_steps": 4, "overlap_eager": True}
    early, late = trials(cluster, "late-eager", {**settings, "outer": outer})
    with joined(early, late):
        start = late.parameters()
        _, anchor = round_of(early)
        late.step(4)
        # Half of what it did, as an outer step with its push alone would have.
        progress = {name: 2 * (value - start[name]) for name, value in late.parameters().items()}
        waiting = threading.Thread(target=late.replica.finish)
        waiting.start()
        wait_until(lambda: _has_arrived(cluster, "late-eager", 1), 20, "all are in round 2")
        mine, after = round_of(early)
        waiting.join(20)
        assert late.replica.stats.stale == 4
        for name, value in late.parameters().items():
            torch.testing.assert_close(value, after[name], rtol=0, atol=1e-6)
            mean = (2 * (mine[name] - anchor[name]) + progress[name]) / 2
            torch.testing.assert_close(value, anchor[name] + mean / 2, rtol=0, atol=1e-6)


def _has_arrived(cluster: Cluster, run: str, revision: int) -> bool:
    """Whether each fragment stands at ``revision``, with a push in the round that follows."""
    with grpc.insecure_channel(cluster.sync_address) as channel:
        stub = sync_pb2_grpc.SyncServiceStub(channel)
        states = stub.GetRunStatus(pb.GetRunStatusRequest(run=run), timeout=10).fragments
    return all(state.revision == revision and state.arrived for state in states)


def test_the_budget_ends_the_run_for_everyone_at_one_revision(cluster: Cluster) -> None:
    settings = {**TWO, "token_budget": 20 * STEP_TOKENS}
    a, b = trials(cluster, "budget", settings)
    with joined(a, b):
        together(lambda: a.step(12), lambda: b.step(12))
        assert a.replica.last_round and b.replica.last_round
        own = a.parameters()
        with torch.inference_mode(), a.replica.unsynced():
            with a.replica.unsynced():  # an evaluation may say so for itself
                pass
            loss_of(a.model, batch(0, 0))
        assert all(torch.equal(own[name], p) for name, p in a.parameters().items())
        with torch.inference_mode():
            loss_of(a.model, batch(0, 0))  # merges, layer by layer
        together(a.replica.finish, b.replica.finish)
        assert a.replica.done and b.replica.done
        merged = a.parameters()
        loss_of(a.model, batch(0, 0)).backward()
        a.optimizer.step()
        assert all(torch.equal(merged[name], p) for name, p in a.parameters().items())
    assert cluster.get("/runs/budget")["state"] == "finished"
    values, revision = published(cluster.sync_address, "budget")
    assert revision == 3
    for trial in (a, b):
        assert all(np.array_equal(values[n], p.numpy()) for n, p in trial.parameters().items())


def test_a_loop_that_counts_no_tokens_is_told_so_when_its_first_push_is_due(
    cluster: Cluster,
) -> None:
    """It would commit rounds of 0 tokens for ever."""
    (trial, _) = trials(cluster, "uncounted", {**TWO, "min_replicas": 1, "token_budget": 9})
    why = "reached: no token was counted in 4 steps"
    with pytest.raises(ConfigError, match=why), trial.replica as replica:
        while True:
            loss_of(trial.model, batch(0, 0)).backward()
            trial.optimizer.step()
            assert replica.inner_step < 4
    assert cluster.get("/runs/uncounted")["fragment_rounds"] == 0


def test_shard_deals_batches_out_and_ends_with_the_run(cluster: Cluster) -> None:
    settings = {**TWO, "token_budget": 16 * STEP_TOKENS}
    a, b = trials(cluster, "dealt", settings)
    taken: dict[int, list[int]] = {}

    def train(trial: Trial) -> None:
        seen = taken[trial.replica.ordinal] = []
        for tokens in trial.replica.shard(batch(7, i)[:, :-1] for i in range(1000)):
            index = next(i for i in range(1000) if torch.equal(tokens, batch(7, i)[:, :-1]))
            seen.append(index)
            trial.model(tokens).square().mean().backward()
            trial.optimizer.step()
            trial.optimizer.zero_grad()

    with joined(a, b):
        together(lambda: train(a), lambda: train(b))
    assert taken == {0: list(range(0, 16, 2)), 1: list(range(1, 16, 2))}


def test_passes_over_a_short_loader_go_on_until_the_run_ends(cluster: Cluster) -> None:
    """The loop that README shows for it."""
    a, b = trials(cluster, "passes", {**TWO, "token_budget": 16 * STEP_TOKENS})
    loader = [batch(7, i)[:, :-1] for i in range(6)]

    def train(trial: Trial) -> int:
        passes = 0
        while not trial.replica.done:
            passes += 1
            for tokens in trial.replica.shard(loader):
                trial.model(tokens).square().mean().backward()
                trial.optimizer.step()
                trial.optimizer.zero_grad()
        return passes

    with capture_logs() as logs, joined(a, b):
        assert together(lambda: train(a), lambda: train(b)) == [3, 3]
    assert (a.replica.inner_step, b.replica.inner_step) == (8, 8)
    assert [line["event"] for line in logs].count("data.dealt") == 2, "each has said so once"
    assert cluster.get("/runs/passes/data")["dataset"] is None, "only tokens are counted"


def test_a_replica_too_many_to_deal_batches_to_hears_of_it(cluster: Cluster) -> None:
    a, b = trials(cluster, "alike", {**TWO, "min_replicas": 1, "token_budget": 4 * STEP_TOKENS})
    heard: dict[int, int] = {}
    with joined(a, b):
        for trial in (a, b):
            with capture_logs() as logs:
                next(trial.replica.shard([batch(7, 0)]))
            heard[trial.replica.ordinal] = sum(line["event"] == "data.shared" for line in logs)
    assert heard == {0: 0, 1: 1}


def test_a_joiner_starts_from_what_is_there_and_takes_part(cluster: Cluster) -> None:
    first, second = trials(cluster, "joiner", {**TWO, "min_replicas": 1})
    with joined(first):
        _, after = round_of(first)
        with joined(second):
            assert all(torch.equal(after[name], p) for name, p in second.parameters().items())
            assert second.replica.committed_tokens == 4 * STEP_TOKENS
            assert (second.replica.inner_step, second.replica.ordinal) == (0, 1)
            second.step(4)
            # In time for the round, which need not wait for who has never been in one.
            wait_until(lambda: is_in(cluster, "joiner", "replica-1"), 20, "its push is in")
            first.step(4)
            together(first.replica.finish, second.replica.finish)
            assert first.replica.revision == second.replica.revision == 2
            wait_until(lambda: [4, 4] in cluster.steps("joiner"), 20, "both are in one round")
            values = second.parameters()
            assert all(torch.equal(values[name], p) for name, p in first.parameters().items())


def test_a_joiner_asks_for_all_fragments_before_it_has_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are pushed at a time."""
    settings, blocks = {**TWO, "min_replicas": 1}, 2 * PUSHES_MAX
    first, second = (
        Trial(
            cluster.control_url, "at-once", seed, settings=settings, model=TinyModel(seed, blocks)
        )
        for seed in range(2)
    )
    begun, pull, asked = threading.Barrier(blocks + 2), Link.pull, list[int]()

    def pulled(link: Link, request: pb.PullRequest, *how: Any) -> Pulled:
        asked.append(request.fragment)
        begun.wait(20)
        return pull(link, request, *how)

    with joined(first):
        monkeypatch.setattr(Link, "pull", pulled)
        with joined(second):
            monkeypatch.undo()
            assert sorted(asked) == list(range(blocks + 2))


def test_a_nan_is_overwritten_and_the_optimizer_forgets_it(cluster: Cluster) -> None:
    a, b = trials(cluster, "nan", TWO)
    with joined(a, b):
        together(lambda: a.step(3), lambda: b.step(4))
        assert any(a.optimizer.state.values())
        with torch.no_grad():
            a.model.head.weight[0, 0] = torch.nan
        loss_of(a.model, batch(0, 0)).backward()
        a.optimizer.step()
        a.optimizer.zero_grad()
        together(a.replica.finish, b.replica.finish)
        values = b.parameters()
        for name, value in a.parameters().items():
            assert value.isfinite().all()
            assert torch.equal(value, values[name])
        assert not a.optimizer.state.get(a.model.head.weight)
        assert a.replica.stats.anomalous > 0
        assert b.replica.stats.anomalous == 0
        together(lambda: a.step(2), lambda: b.step(2))
        assert all(p.isfinite().all() for p in a.model.parameters())


def sick_step(trial: Trial) -> None:
    """An inner step whose loss is NaN."""
    trial.replica.count_tokens(STEP_TOKENS)
    (loss_of(trial.model, batch(trial.seed, 0)) * float("nan")).backward()
    trial.optimizer.step()
    trial.optimizer.zero_grad()


def test_a_loop_whose_every_push_is_excluded_ends_and_says_why(cluster: Cluster) -> None:
    settings = {**QUICK, "sync_every": 1, "token_budget": 20 * STEP_TOKENS}
    (trial,) = trials(cluster, "barren", settings, count=1)
    said = r"\(replica-0 does not count: its values are not finite\); lower optimizer.lr\.$"
    with capture_logs() as logs, pytest.raises(TrainingDiverged, match=said), joined(trial):
        for _ in range(3 * BARREN_MAX):
            sick_step(trial)
    replica = trial.replica
    assert (replica.revision, replica.committed_tokens) == (BARREN_MAX, 0)
    assert [log["event"] for log in logs].count("merge.nothing") == 1
    assert trial.model.head.weight.isfinite().all()


def test_whose_pushes_never_count_goes_on_beside_others_whose_do(cluster: Cluster) -> None:
    healthy, sick = trials(cluster, "beside", {**TWO, "sync_every": 1})

    def fall_ill() -> None:
        for _ in range(BARREN_MAX + 2):
            sick_step(sick)

    with joined(healthy, sick):
        together(lambda: healthy.step(BARREN_MAX + 2), fall_ill)
        together(healthy.replica.finish, sick.replica.finish)
        assert sick.replica.stats.anomalous > BARREN_MAX
        assert sick.replica.stats.barren == healthy.replica.stats.barren == 0
        assert sick.replica.committed_tokens == (BARREN_MAX + 2) * STEP_TOKENS
