"""Leased data through a whole run: what is trained, by the ledger and by who trained it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs
from torch.utils.data import DataLoader

from syncline.data.order import permuted
from syncline_proto.errors import ConfigError, DataMismatch
from syncline_testing.cluster import Cluster
from syncline_testing.readers import SIZE, Examples, Reader, told, view
from syncline_testing.replicas import (
    BATCH,
    LENGTH,
    QUICK,
    Trial,
    joined,
    loss_of,
    together,
)
from syncline_testing.shell import Shell
from syncline_testing.waiting import wait_until

ROUND = QUICK["sync_every"] * BATCH
IMPATIENT = {**QUICK, "timeouts": {"lease": 1.0, "round_deadline": 2.0}}
SETTLED_S = 20.0
"""By when a lost replica's data is free again: lease and deadline, and some patience."""


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"warmup_steps": 3},
        pytest.param({"fragment_groups": 3, "overlap_steps": 2}, marks=pytest.mark.long),
    ],
)
def test_every_example_of_an_epoch_is_trained_once(cluster: Cluster, how: dict[str, Any]) -> None:
    run = f"once-{len(how)}-{how.get('warmup_steps', 0)}"
    budget = 3 * SIZE * LENGTH
    settings = {**QUICK, **how, "min_replicas": 2, "token_budget": budget}
    a, b = (Reader(cluster.control_url, run, seed, settings=settings) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(1000), lambda: b.step(1000))
        assert a.replica.done and b.replica.done
        committed = a.replica.committed_tokens
    seen = told(cluster, run, committed // LENGTH)
    assert seen["trained"] == committed // LENGTH >= 3 * SIZE
    assert (seen["excluded"], seen["leased"]) == (0, 0), "nobody is there any more"
    whole = [epoch for epoch in seen["epochs"] if epoch["trained"] == SIZE]
    assert len(whole) >= 2
    # Whoever is ahead reads the next epoch while others still have some of this one, and at the
    # end of the run have it unread.
    times = Counter([*a.read, *b.read])
    assert min(times[one] for one in range(SIZE)) >= len(whole)
    assert max(times.values()) <= len(seen["epochs"])


def test_each_epoch_is_read_in_its_own_permutation(cluster: Cluster) -> None:
    settings = {**QUICK, "token_budget": 2 * SIZE * LENGTH}
    a = Reader(cluster.control_url, "permuted", 0, settings=settings)
    with joined(a):
        a.step(1000)
        assert a.replica.done
    orders = [permuted(np.arange(SIZE), SIZE, 5, epoch).tolist() for epoch in range(2)]
    assert a.read[:SIZE] == orders[0] != list(range(SIZE))
    assert a.read[SIZE : 2 * SIZE] == orders[1] != orders[0]


def test_what_a_replica_left_unread_others_read(cluster: Cluster) -> None:
    settings = {**QUICK, "token_budget": SIZE * LENGTH}
    a, b = (Reader(cluster.control_url, "leaves", seed, settings=settings) for seed in range(2))
    with joined(a):
        a.step(2)
        a.replica.request_drain()
        a.step(1)
        assert a.replica.drained
    assert told(cluster, "leaves", 3 * BATCH)["leased"] == 0, "what it had unread is free at once"
    with joined(b):
        b.step(1000)
        assert b.replica.done
    assert Counter([*a.read, *b.read][:SIZE]) == dict.fromkeys(range(SIZE), 1)
    assert told(cluster, "leaves", SIZE)["epochs"][0]["trained"] == SIZE


def test_data_status_shows_what_is_trained_and_who_holds_what(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
    shell = Shell(capsys)
    a = Reader(cluster.control_url, "shown", 0, settings=QUICK)
    with capture_logs(), joined(a):
        code, said, _ = shell("data status shown")
        assert code == 0 and said.startswith("Nobody has asked for leased data in this run")
        assert shell.json("data status shown")["dataset"] is None
        a.step(QUICK["sync_every"] + 1)
        told(cluster, "shown", ROUND)
        a.replica.request_drain()
        a.step(1)
        last = told(cluster, "shown", ROUND + 2 * BATCH)
    b = Reader(cluster.control_url, "shown", 1, settings=QUICK)
    with capture_logs(), joined(b):
        b.step(1)
        seen, said = dict[str, Any](), ""

        def stands() -> bool:
            """It holds its stock, and both were shown before that changed."""
            nonlocal seen, said
            seen, (_, said, _) = shell.json("data status shown"), shell("data status shown")
            return seen["leased"] >= ROUND and seen == view(cluster, "shown")

        wait_until(stands, 20, "all is as it was", lambda: seen)
    (epoch,) = seen["epochs"]
    assert epoch["trained"] == seen["trained"] == last["trained"] == ROUND + 2 * BATCH
    assert epoch["trained"] + epoch["leased"] + epoch["free"] == SIZE and epoch["free"] > 0
    assert seen["holders"] == [{"replica": "replica-1", "sequences": epoch["leased"]}]
    rows = [line.split() for line in said.splitlines() if line]
    numbers = [str(epoch[name]) for name in ("trained", "excluded", "leased", "free")]
    (row,) = [row for row in rows if row[-4:] == numbers]
    assert (row[0], row[2:4]) == ("0", ["25.0", "%"])
    assert row[1] == "█" * 6 + "▒" * round(24 * epoch["leased"] / SIZE) + "░" * row[1].count("░")
    assert ["replica-1", str(epoch["leased"])] in rows
    assert ["dataset", "96", "sequences,", "seed", "5"] in rows


def test_what_a_lost_replica_did_not_bring_in_others_read(cluster: Cluster) -> None:
    settings = {**IMPATIENT, "token_budget": SIZE * LENGTH}
    a = Reader(cluster.control_url, "lost", 0, settings=settings)
    a.replica.start()
    a.step(QUICK["sync_every"] + 2)
    assert told(cluster, "lost", ROUND)["trained"] == ROUND
    a.replica.close(failed=True)
    unread = view(cluster, "lost")["leased"]
    assert unread == 2 * BATCH, "what it had read, and nobody knows what came of it"
    b = Reader(cluster.control_url, "lost", 1, settings=settings)
    with joined(b):
        b.step(3)

        def is_free() -> bool:
            return "replica-0" not in {one["replica"] for one in view(cluster, "lost")["holders"]}

        wait_until(is_free, SETTLED_S, "no round can have it")
        b.step(1000)
        assert b.replica.done
    brought_in = [*a.read[:ROUND], *b.read]
    assert Counter(brought_in[:SIZE]) == dict.fromkeys(range(SIZE), 1)


@pytest.mark.long
def test_training_goes_on_without_the_control_plane(tmp_path: Path) -> None:
    """First with what is leased, then with examples of its own, which nobody counts."""
    settings = {**QUICK, "timeouts": {"lease": 30.0, "round_deadline": 60.0}}
    with Cluster(tmp_path) as cluster:
        a = Reader(cluster.control_url, "away", 0, settings=settings, size=4 * SIZE)
        with joined(a):
            a.step(2)
            cluster.control.kill()
            with capture_logs() as logs:
                a.step(SIZE // BATCH + 8)
            assert [line["event"] for line in logs].count("data.unleased") == 1
            cluster.control.start()
            a._batches.close()  # type: ignore[union-attr]
            life = a.replica._life
            assert life is not None and life._leases is not None
            leases = life._leases
            wait_until(lambda: bool(leases.take(1, 1.0)), 20, "it is leased some again")


def test_examples_are_loaded_ahead_and_count_when_they_are_read(cluster: Cluster) -> None:
    settings = {**QUICK, "token_budget": SIZE * LENGTH}
    a = Trial(
        cluster.control_url,
        "ahead",
        0,
        settings=settings,
        tokens_of=lambda batch: batch[:, 1:].numel(),
    )
    with joined(a):
        workers: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 4}
        for batch in a.replica.leased(Examples(), BATCH, **workers):
            loss_of(a.model, batch).backward()
            a.optimizer.step()
            a.optimizer.zero_grad()
            if a.replica.inner_step == ROUND // BATCH:
                assert told(cluster, "ahead", ROUND)["trained"] == ROUND
        assert a.replica.done
    seen = told(cluster, "ahead", SIZE)
    assert (seen["trained"], seen["leased"]) == (SIZE, 0)


def test_other_data_is_refused_and_a_second_dataset_too(cluster: Cluster) -> None:
    a, b = (
        Reader(cluster.control_url, "other", seed, settings=QUICK, size=SIZE + seed)
        for seed in range(2)
    )
    with joined(a):
        a.step(1)
        with pytest.raises(ConfigError, match="one leased dataset"):
            a.replica.leased(Examples(), BATCH)
        with pytest.raises(
            DataMismatch, match=r"sequences is 96 there, and 97 here.*leased = false"
        ):
            b.replica.start()
            b.step(1)
        b.replica.close(failed=True)


def test_a_loop_that_was_left_goes_on_where_it_was(cluster: Cluster) -> None:
    a = Reader(cluster.control_url, "again", 0, settings={**QUICK, "token_budget": SIZE * LENGTH})
    with joined(a):
        left = a.replica.leased(Examples(), BATCH, seed=5, num_workers=1)
        a._batches = left
        a.step(3)
        a._batches = None
        a.step(1)
        with pytest.raises(ConfigError, match="what it gave last"):
            next(left)
        a.step(1000)
        assert a.replica.done
    assert Counter(a.read[:SIZE]) == dict.fromkeys(range(SIZE), 1)


def test_larger_batches_than_before_are_waited_for_no_longer(cluster: Cluster) -> None:
    """The stock grows with them; a stock as it was would never be as large."""
    a = Reader(cluster.control_url, "larger", 0, settings=QUICK)
    with joined(a):
        a.step(1)
        with capture_logs() as logs:
            larger = a.replica.leased(Examples(), SIZE // 2, seed=5)
            for _ in range(3):
                assert len(next(larger)) == SIZE // 2
    assert "data.unleased" not in {line["event"] for line in logs}


def test_by_time_two_intervals_are_held(cluster: Cluster) -> None:
    a = Reader(cluster.control_url, "by-time", 0, settings={**QUICK, "sync_seconds": 600.0})
    with joined(a):
        a.step(1)
        life = a.replica._life
        assert life is not None and life._leases is not None
        assert life._leases._supply.ahead_s == 1200.0


def test_alone_a_replica_reads_each_example_once_an_epoch() -> None:
    a = Reader(None, "alone", 0, settings={"token_budget": 2 * SIZE * LENGTH})
    with a.replica:
        a.step(1000)
    assert Counter(a.read) == dict.fromkeys(range(SIZE), 2)
    assert sorted(a.read[:SIZE]) == list(range(SIZE))


@pytest.mark.parametrize(
    ("dataset", "how", "why"),
    [
        ([], {}, "is empty"),
        (DataLoader(Examples()), {}, "not a DataLoader"),  # pyright: ignore[reportArgumentType]
        (iter([1]), {}, "read a stream with replica.shard"),
        (Examples(), {"seed": 2**70}, "seed"),
        (Examples(), {"batch_size": "8"}, "'8'; it must be a whole number"),
        (Examples(), {"batch_size": 8.0}, "8.0; it must be a whole number"),
        (Examples(), {"batch_size": 0}, "is 0"),
        (Examples(), {"shuffle": True}, "takes no shuffle"),
        (Examples(), {"sampler": [1]}, "takes no sampler"),
        (Examples(), {"in_order": False}, "takes no in_order"),
        (Examples(), {"num_worker": 2}, "is num_workers meant"),
    ],
    ids=[
        "empty",
        "loader",
        "stream",
        "seed",
        "words",
        "fraction",
        "nothing",
        "shuffle",
        "sampler",
        "disorder",
        "misspelt",
    ],
)
def test_what_cannot_be_leased_is_refused_before_anybody_is_asked(
    dataset: Any, how: dict[str, Any], why: str
) -> None:
    a = Trial(None, "wrong", 0, settings=QUICK)
    with a.replica, pytest.raises(ConfigError, match=why):
        a.replica.leased(dataset, **{"batch_size": BATCH, **how})
