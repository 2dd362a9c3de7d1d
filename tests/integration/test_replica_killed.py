"""kill -9 of one replica of three, at chosen instants of a round: the others lose nothing by it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import torch

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, arrived, joined, together
from syncline_testing.victim import NAME, WIDE_FRAGMENT, victim, wide_model
from syncline_testing.waiting import wait_until

FRAGMENTS = range(4)
SETTINGS: dict[str, Any] = {
    **QUICK,
    "min_replicas": 1,
    "expected_replicas": 3,
    "token_budget": 40 * STEP_TOKENS,
    "timeouts": {"lease": 4.0, "round_deadline": 100.0},
}
"""Three in the first round; who waits for the deadline of a later one fails the test."""


def survivors(cluster: Cluster, run: str) -> list[Trial]:
    return [
        Trial(cluster.control_url, run, seed, settings=SETTINGS, model=wide_model(seed))
        for seed in range(2)
    ]


def job(cluster: Cluster, run: str, **more: Any) -> dict[str, Any]:
    return {"control": cluster.control_url, "run": run, "settings": SETTINGS, **more}


def staged_bytes(cluster: Cluster) -> float:
    text = httpx.get(cluster.sync_metrics_url, trust_env=False).text
    found = re.search(r"^syncline_staged_bytes (\S+)$", text, flags=re.MULTILINE)
    assert found is not None
    return float(found[1])


def rounds(cluster: Cluster, run: str, newest: int) -> dict[tuple[int, int], tuple[str, set[str]]]:
    """(fragment, revision) -> how it closed and whose pushes it holds; once ``newest`` is told."""
    found: dict[tuple[int, int], tuple[str, set[str]]] = {}

    def all_told() -> bool:
        for told in cluster.get(f"/runs/{run}/rounds"):
            whose = {c["replica"] for c in told["contributions"]}
            found[told["fragment"], told["revision"]] = (told["closed_by"], whose)
        return all((f, r) in found for f in FRAGMENTS for r in range(newest + 1))

    wait_until(all_told, 20, "every round is told")
    return found


def train_to_the_end(cluster: Cluster, run: str, a: Trial, b: Trial) -> None:
    """The survivors reach the token budget, at one revision and with one model."""
    together(lambda: a.step(40), lambda: b.step(40))
    assert a.replica.done and b.replica.done
    assert a.replica.revision == b.replica.revision
    assert a.replica.committed_tokens >= SETTINGS["token_budget"]
    theirs = b.parameters()
    assert all(torch.equal(theirs[name], p) for name, p in a.parameters().items())
    assert cluster.get(f"/runs/{run}")["state"] == "finished"


def test_killed_after_its_push_was_accepted_it_counts_and_is_not_waited_for(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = "killed-after"
    a, b = survivors(cluster, run)
    with victim(tmp_path, job(cluster, run)) as process, joined(a, b):
        together(lambda: a.step(5), lambda: b.step(5))
        everywhere = [{NAME}] * len(FRAGMENTS)
        wait_until(lambda: arrived(cluster.sync_address, run) == everywhere, 30, "it is in")
        process.kill()
        process.wait()
        train_to_the_end(cluster, run, a, b)
        names = {a.replica.name, b.replica.name}
    told = rounds(cluster, run, a.replica.revision)
    for fragment in FRAGMENTS:
        assert told[fragment, 2] == ("everyone", {*names, NAME})
        how, whose = told[fragment, 3]
        assert how != "deadline", "the lease ends the wait"
        assert whose == names


def test_killed_amid_its_push_it_is_waited_for_until_its_lease_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    run, note = "killed-amid", tmp_path / "note"
    a, b = survivors(cluster, run)
    wide_bytes = 4 * sum(p.numel() for p in a.model.blocks[0].parameters())
    with victim(tmp_path, job(cluster, run, note=str(note))) as process, joined(a, b):
        together(lambda: a.step(5), lambda: b.step(5))
        a.step(3)  # opens the rounds while the victim lives, so they wait for it
        both = [{a.replica.name, NAME}] * len(FRAGMENTS)
        both[WIDE_FRAGMENT] = {a.replica.name}
        wait_until(lambda: arrived(cluster.sync_address, run) == both, 30, "all else is in")
        wait_until(note.exists, 30, "half of the wide fragment is out")
        wait_until(lambda: staged_bytes(cluster) == wide_bytes, 30, "it is on its way in")
        process.kill()
        process.wait()
        wait_until(lambda: staged_bytes(cluster) == 0, 30, "its half is forgotten")
        train_to_the_end(cluster, run, a, b)
        names = {a.replica.name, b.replica.name}
    told = rounds(cluster, run, a.replica.revision)
    for fragment in FRAGMENTS:
        is_wide = fragment == WIDE_FRAGMENT
        assert told[fragment, 2] == (("loss", names) if is_wide else ("everyone", {*names, NAME}))
        assert told[fragment, 3] == ("everyone", names)
