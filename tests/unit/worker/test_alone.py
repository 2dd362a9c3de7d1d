"""Without a control plane a script runs as it is: Syncline says so once, counts, does nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from structlog.testing import capture_logs

from syncline import Replica, RunSettings
from syncline.batches import tokens_in
from syncline_proto.errors import ConfigError
from syncline_testing.replicas import STEP_TOKENS, TinyModel, Trial, batch, loss_of


@pytest.fixture(autouse=True)
def _no_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONTROL", "RUN", "REPLICA", "TOKEN"):
        monkeypatch.delenv(f"SYNCLINE_{name}", raising=False)


def test_training_is_bit_for_bit_the_same_and_it_is_said_once() -> None:
    trial = Trial(None, "r", 1, settings={"token_budget": 10, "expected_replicas": 4})
    with capture_logs() as logs, trial.replica:
        trial.step(5)
    assert [entry["event"] for entry in logs] == ["replica.alone"]
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
