"""Without a control plane a script runs as it is: Syncline says so once, counts, does nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from syncline import Replica, RunSettings
from syncline.batches import tokens_in
from syncline_proto.errors import ConfigError
from syncline_testing.replicas import STEP_TOKENS, TinyModel, Trial, batch, loss_of
from syncline_testing.two_ranks import two_ranks


@pytest.fixture(autouse=True)
def _no_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONTROL", "RUN", "REPLICA", "TOKEN"):
        monkeypatch.delenv(f"SYNCLINE_{name}", raising=False)


def test_training_is_bit_for_bit_the_same_and_it_is_said_once() -> None:
    trial = Trial(None, "r", 1, settings={"strategy": "diloco", "expected_replicas": 4})
    with capture_logs() as logs, trial.replica:
        trial.step(5)
    assert [entry["event"] for entry in logs] == ["replica.alone"]
    assert logs[0]["so"] == "settings that mean nothing here: strategy, expected_replicas"
    bare, plain = TinyModel(1), {}
    optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-2)
    for step in range(5):
        loss_of(bare, batch(1, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    plain = dict(bare.named_parameters())
    assert all(torch.equal(plain[name], p) for name, p in trial.parameters().items())
    replica = trial.replica
    assert not (replica.active or replica.done or replica.last_round)
    assert (replica.inner_step, replica.run_tokens) == (5, 5 * STEP_TOKENS)
    assert replica.stats.bytes_up == replica.stats.rounds == 0


@pytest.mark.parametrize("steps", [1, 3])
def test_the_token_budget_ends_it(steps: int) -> None:
    budget = steps * STEP_TOKENS - 1
    trial = Trial(None, "r", 1, settings={"token_budget": budget})
    with capture_logs() as logs, trial.replica as replica:
        trial.step(99)
        assert replica.done and not replica.drained and replica.phase == "done"
    assert (replica.inner_step, replica.run_tokens) == (steps, steps * STEP_TOKENS)
    assert "so" not in logs[0], "the budget means what it says"


def test_a_shard_ends_at_the_token_budget() -> None:
    trial = Trial(None, "r", 1, settings={"token_budget": 3 * STEP_TOKENS})
    seen = 0
    with trial.replica as replica:
        for tokens in replica.shard([batch(0, i)[:, :-1] for i in range(9)]):
            trial.model(tokens).sum().backward()
            trial.optimizer.step()
            seen += 1
    assert seen == 3


def test_what_requires_a_gradient_and_no_step_would_change_is_named() -> None:
    model = TinyModel(1)
    (_, first), *others = model.named_parameters()
    replica = Replica(model, torch.optim.SGD([first], lr=0.1), run="r")
    with capture_logs() as logs, replica:
        pass
    (told,) = (entry for entry in logs if entry["event"] == "optimizer.lacks")
    assert (told["count"], told["first"]) == (len(others), others[0][0])
    for _, parameter in others:
        parameter.requires_grad_(False)
    with capture_logs() as logs, replica:
        pass
    assert "optimizer.lacks" not in [entry["event"] for entry in logs]


def test_batches_without_tokens_are_told_of_once() -> None:
    trial = Trial(None, "r", 1)
    floats = [{"image": torch.ones(5)}] * 4
    with capture_logs() as logs, trial.replica as replica:
        for _ in range(2):
            for _ in replica.shard(floats):
                trial.optimizer.step()
    assert [entry["event"] for entry in logs] == ["replica.alone", "data.uncounted"]
    assert "tokens_of=" in logs[1]["so"]


def test_a_budget_that_nothing_counts_towards_is_refused_after_a_step() -> None:
    trial = Trial(None, "r", 1, settings={"token_budget": 9})
    with trial.replica as replica:
        batches = replica.shard([torch.ones(5)] * 4)
        next(batches)
        next(batches)  # gradients may be gathered over several
        trial.optimizer.step()
        with pytest.raises(ConfigError, match="never be reached: no batch has had input_ids"):
            next(batches)


@pytest.mark.parametrize("every", [1, 3])
def test_a_loop_that_counts_nothing_towards_its_budget_is_refused_at_the_first_boundary(
    every: int,
) -> None:
    """One without ``shard``; alone, where the first push would be."""
    trial = Trial(None, "r", 1, settings={"token_budget": 9, "sync_every": every})
    why = "reached: no token was counted in [23] steps; iterate over replica.shard"
    with trial.replica as replica:
        for _ in range(max(every, 2) - 1):
            trial.optimizer.step()
        with pytest.raises(ConfigError, match=why):
            trial.optimizer.step()
        replica.count_tokens(1)
        trial.optimizer.step()


@pytest.mark.parametrize("tokens_of", [None, lambda batch: len(batch)])
def test_whoever_counts_tokens_is_enough(tokens_of: Callable[[torch.Tensor], int] | None) -> None:
    trial = Trial(None, "r", 1, settings={"token_budget": 15}, tokens_of=tokens_of)
    with capture_logs() as logs, trial.replica as replica:
        for batch_ in replica.shard([torch.ones(5)] * 4):
            if tokens_of is None:
                replica.count_tokens(len(batch_))
            trial.optimizer.step()
    assert len(logs) == 1 and replica.inner_step == 3


def test_a_count_of_ones_own_that_gives_nothing_is_told_of_as_that() -> None:
    trial = Trial(None, "r", 1, settings={"token_budget": 9}, tokens_of=lambda batch: 0)
    with trial.replica as replica:
        batches = replica.shard([torch.arange(5)] * 4)
        next(batches)
        trial.optimizer.step()
        with pytest.raises(ConfigError, match="reached: tokens_of counted 0 tokens in every batch"):
            next(batches)


@pytest.mark.parametrize("tokens", [-1, 2.5, np.float64(2), torch.tensor(2.5), None, "7"])
def test_what_is_no_number_of_tokens_is_refused(tokens: Any) -> None:
    trial = Trial(None, "r", 1, tokens_of=lambda batch: tokens)
    with trial.replica as replica:
        with pytest.raises(ConfigError, match="must be a whole number, 0 or more, not") as refused:
            replica.count_tokens(tokens)
        assert repr(tokens) in refused.value.message
        with pytest.raises(ConfigError, match="by tokens_of"):
            next(replica.shard([torch.ones(5)]))


@pytest.mark.parametrize("tokens", [0, 7, np.int32(7), np.array(7), torch.tensor(7)])
def test_a_number_of_tokens_may_be_of_any_kind(tokens: Any) -> None:
    trial = Trial(None, "r", 1)
    with trial.replica as replica:
        replica.count_tokens(tokens)
        trial.optimizer.step()
        assert replica.run_tokens == int(tokens)
        assert type(replica.run_tokens) is int


@pytest.mark.filterwarnings("error")
def test_a_loss_may_be_reported_as_it_was_computed() -> None:
    trial = Trial(None, "r", 1)
    loss = loss_of(trial.model, batch(0, 0))
    trial.replica.report(loss=loss, grad_norm=torch.ones(()))
    trial.replica.add_point("held-out", loss)
    assert trial.replica.reported == {"loss": loss.item(), "grad_norm": 1.0}


def test_a_figure_that_is_no_number_is_named() -> None:
    replica = Trial(None, "r", 1).replica
    with pytest.raises(ConfigError, match=r"^loss must be one number, not a tensor of shape \[3\]"):
        replica.report(loss=torch.rand(3))
    with pytest.raises(ConfigError, match="^lr must be one number, not 'high'"):
        replica.report(lr="high")  # pyright: ignore[reportArgumentType]


def test_losses_that_are_not_finite_are_told_of_ever_more_seldom() -> None:
    replica = Trial(None, "r", 1).replica
    with capture_logs() as logs:
        for _ in range(9):
            replica.report(loss=float("nan"), grad_norm=1.0)
    assert [entry["event"] for entry in logs] == ["loss.not_finite"] * 4
    assert [entry["so_far"] for entry in logs] == [1, 2, 4, 8]
    assert replica.reported == {"grad_norm": 1.0}


def test_of_several_ranks_one_says_it(tmp_path: Path) -> None:
    act = """
import torch, syncline
model = torch.nn.Linear(2, 2)
with syncline.Replica(model, torch.optim.SGD(model.parameters())) as replica:
    assert not replica.active
"""
    first, second = two_ranks(tmp_path, act)
    assert first.count("replica.alone") == 1 and second == ""


def test_ranks_end_at_one_step_whatever_each_counts(tmp_path: Path) -> None:
    """Or one would wait in a collective for the other, that has left the loop."""
    act = """
import torch, syncline
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
with syncline.Replica(model, optimizer, settings={"token_budget": 60}) as replica:
    while not replica.done:
        replica.count_tokens((10, 999)[rank])
        model(torch.ones(2)).sum().backward()
        optimizer.step()
print("after", replica.inner_step, replica.run_tokens)
with syncline.Replica(model, optimizer) as replica:
    for step in range(4):
        if rank == 1 and step == 1:
            replica.request_drain()
        if not replica.done:
            optimizer.step()
print("drained after", replica.inner_step)
"""
    for said in two_ranks(tmp_path, act):
        told = [line for line in said.splitlines() if "alone" not in line]
        assert told == ["after 3 60", "drained after 2"]


def test_ranks_that_nothing_averages_are_refused_as_they_are_in_a_run(tmp_path: Path) -> None:
    """Before the first step, or where the loop looks at its gradients; not where they are one."""
    act = """
import torch, syncline
from syncline_proto.errors import ConfigError
model = torch.nn.Linear(2, 2)
for ask, by_hand in ((True, False), (False, False), (False, True)):
    optimizer = torch.optim.SGD(model.parameters())
    replica = syncline.Replica(model, optimizer)
    replica.start()
    model(torch.full((1, 2), float(rank + 1))).sum().backward()
    try:
        if by_hand:
            for p in model.parameters():
                dist.all_reduce(p.grad)
        replica.synchronize() if ask else optimizer.step()
    except ConfigError as error:
        print(error.message)
    else:
        print("went on", replica.inner_step)
    replica.close()
    optimizer.zero_grad()
"""
    for said in two_ranks(tmp_path, act):
        first, second, third = (line for line in said.splitlines() if "alone" not in line)
        assert "different gradients of weight, so each trains" in first
        assert second == first
        assert third == "went on 1"


def test_ranks_that_have_not_met_are_refused_as_they_are_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="^WORLD_SIZE is 2, and torch.distributed is not"):
        Trial(None, "r", 1).replica.start()


def test_ranks_of_which_nobody_says_how_many_say_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data-parallel by other means, or not at all."""
    for rank, said in (("0", 1), ("1", 0), ("", 1)):
        monkeypatch.setenv("RANK", rank)
        with capture_logs() as logs, Trial(None, "r", 1).replica:
            pass
        assert [entry["event"] for entry in logs] == ["replica.alone"] * said


@pytest.mark.parametrize(("budget", "batches"), [(9, 101), (None, 10_001)])
def test_a_loop_that_steps_another_optimizer_is_refused(budget: int | None, batches: int) -> None:
    trial = Trial(None, "r", 1, settings={"token_budget": budget})
    why = f"{batches} batches were counted without a step of the"
    with pytest.raises(ConfigError, match=why), trial.replica as replica:
        while not replica.done:
            replica.count_tokens(1)


def test_gradients_may_be_gathered_over_thousands_of_batches() -> None:
    trial = Trial(None, "r", 1)
    with trial.replica as replica:
        for _ in range(2):
            for _ in range(10_000):
                replica.count_tokens(1)
            trial.optimizer.step()


def test_all_batches_are_its_own() -> None:
    trial = Trial(None, "r", 1, settings={"expected_replicas": 3})
    loader = [batch(0, i) for i in range(4)]
    with trial.replica as replica:
        assert [b is own for b, own in zip(replica.shard(loader), loader, strict=True)] == [
            True
        ] * 4


def test_a_drain_ends_the_loop_after_the_step() -> None:
    trial = Trial(None, "r", 1)
    with trial.replica as replica:
        replica.request_drain()
        assert not replica.done
        trial.step(9)
        assert replica.done
        assert replica.inner_step == 1


def test_after_it_is_closed_it_counts_no_more() -> None:
    trial = Trial(None, "r", 1)
    with trial.replica:
        pass
    trial.optimizer.step()
    assert trial.replica.inner_step == 0


def test_batches_of_which_no_step_came_are_told_of_at_the_end() -> None:
    trial = Trial(None, "r", 1)
    with capture_logs() as logs, trial.replica as replica:
        replica.count_tokens(1)
    assert [entry["event"] for entry in logs] == ["replica.alone", "data.untrained"]
    with capture_logs() as logs, trial.replica as replica:
        trial.step()
    assert [entry["event"] for entry in logs] == ["replica.alone"]


@pytest.mark.parametrize(
    "act",
    [
        lambda replica: next(replica.shard([batch(0, 0)])),
        lambda replica: replica.count_tokens(1),
        lambda replica: replica.synchronize(),
        lambda replica: replica.finish(),
    ],
)
def test_who_was_not_started_does_not_train_alone_without_a_word(
    act: Callable[[Replica], object],
) -> None:
    closed = Trial(None, "r", 1).replica
    with closed:
        pass
    with pytest.raises(ConfigError, match="^The replica is closed"):
        act(closed)
    trial = Trial("http://127.0.0.1:9", "r", 1)
    with pytest.raises(ConfigError, match="start it, or use it in a `with` block"):
        act(trial.replica)
    trial.replica.close()


def test_it_starts_once_and_closes_once() -> None:
    trial = Trial(None, "r", 1)
    with trial.replica:
        with pytest.raises(ConfigError, match="started already"):
            trial.replica.start()
        trial.step()
    trial.replica.close()
    assert trial.replica.inner_step == 1


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"settings": {"sync_evry": 3}}, "sync_evry"),
        ({"settings": {"outer": {"lr": -1}}}, "outer.lr"),
        ({"control": "ftp://somewhere"}, "ftp://somewhere"),
        ({"control": "localhost:1", "run": "My Run"}, "My Run"),
        ({"run": "Bad_Name!"}, "Bad_Name!"),
        ({"name": "Left Hand"}, "Left Hand"),
    ],
)
def test_a_wrong_word_is_named(how: dict[str, object], named: str) -> None:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ConfigError, match=named):
        Replica(model, optimizer, **how)  # pyright: ignore[reportArgumentType]


def test_the_environment_says_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNCLINE_CONTROL", "127.0.0.1:9")
    monkeypatch.setenv("SYNCLINE_REPLICA", "left")
    model = TinyModel()
    replica = Replica(model, torch.optim.SGD(model.parameters()), settings=RunSettings())
    assert replica.active
    assert replica.name == "left"


@pytest.mark.parametrize(
    ("batch_", "tokens"),
    [
        ({"x": torch.zeros(9, dtype=torch.int32), "input_ids": torch.zeros(2, 3)}, 6),
        ({"image": torch.zeros(5), "mask": torch.ones(4) > 0, "ids": torch.arange(8)}, 8),
        ((torch.zeros(5), [torch.arange(7)]), 7),
        (torch.arange(3), 3),
        ({"image": torch.zeros(5), "name": "text"}, 0),
    ],
)
def test_tokens_are_counted_in_common_batches(batch_: object, tokens: int) -> None:
    assert tokens_in(batch_) == tokens
