"""Journeys of a replica that is late, replaced, refused, drained or done, or beside one of ours.

Every run here averages in fp32, so what must be pulled is a mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from independent.control import Control, Refused
from independent.layout import Arrays, Layout
from independent.replica import Replica, observed, pb, refused, trailer
from independent.rounds import STEPS, TOKENS, WORK, close_to, create, layout, noise

FP32 = {"up": "fp32", "down": "fp32"}
HEARD_S = 10.0


def moved(by: Arrays, of: Arrays) -> Arrays:
    """The parameters after progress against the anchor."""
    return [anchor - progress for anchor, progress in zip(of, by, strict=True)]


def problem(call: Callable[[], Any]) -> str:
    """The code of a REST call that must end in a problem."""
    try:
        call()
    except Refused as refusal:
        return refusal.code
    raise AssertionError("it was not refused")


def verdicts(answers: list[Any]) -> set[int]:
    return {answer.verdict for answer in answers}


def late_and_fenced(control: Control) -> None:
    """One is late, moves its progress onto the new anchor; the other comes a second time."""
    create(control, "late", strategy="local-sgd", sync_every=STEPS, codec=FP32)
    of = layout()
    with Replica(control, "late", "a", of) as a, Replica(control, "late", "b", of) as b:
        alone, late = noise(of, 1), noise(of, 2)
        assert verdicts(a.push_all(alone, work=WORK)) == {pb.VERDICT_ACCEPTED}
        a.pull_all(revision=1)
        stale = b.push_all(late, work=WORK)
        assert verdicts(stale) == {pb.VERDICT_STALE}
        assert {answer.result_revision for answer in stale} == {1}
        again = b.push(0, late, again=True, work=WORK)
        assert again.verdict == pb.VERDICT_DUPLICATE and again.judged == pb.VERDICT_STALE
        assert again.result_revision == 1
        own, before = moved(late, b.anchor), b.anchor
        b.anchor = of.arrays()
        b.pull_all(revision=1)
        rebased = [n + (o - w) for n, o, w in zip(b.anchor, own, before, strict=True)]
        for answer in b.push_all(moved(rebased, b.anchor), work=WORK):
            assert answer.verdict == pb.VERDICT_ACCEPTED and answer.result_revision == 2
        again = b.push(0, late, again=True, work=WORK)
        assert again.verdict == pb.VERDICT_DUPLICATE and again.judged == pb.VERDICT_ACCEPTED
        assert again.result_revision == 2
        second = noise(of, 3)
        assert verdicts(a.push_all(second, work=WORK)) == {pb.VERDICT_ACCEPTED}
        b.pull_all(revision=2)
        for got, *parts in zip(b.anchor, alone, late, second, strict=True):
            first, mine, theirs = (part.astype(np.float64) for part in parts)
            close_to(got, -first - (mine + theirs) / 2)
        with Replica(control, "late", "a", of) as anew:
            assert anew.lease.incarnation > a.lease.incarnation
            fenced = a.push_all(second, base=2, work=WORK)
            assert verdicts(fenced) == {pb.VERDICT_FENCED}
            assert refused(lambda: a.pull(0, newest=True))[0] == "LEASE_LOST"
            assert problem(a.lease.renew) == "LEASE_LOST"
            assert anew.revisions == [2 for _ in anew.fragments]


def refusals(control: Control) -> None:
    """What is refused says so with the page's code, and changes nothing."""
    of = layout()
    create(control, "refusals", strategy="local-sgd", sync_every=STEPS, codec=FP32)
    assert problem(lambda: create(control, "refusals", sync_every=STEPS)) == "RUN_CONFLICT"
    assert problem(lambda: create(control, "Refusals")) == "INVALID_REQUEST"
    assert problem(lambda: control.call("GET", "/runs/nothing")) == "RUN_UNKNOWN"
    with Replica(control, "refusals", "a", of) as a:
        other = Replica(control, "refusals", "b", layout(rows=13))
        code, status, error = refused(other.open)
        assert (code, status) == ("LAYOUT_MISMATCH", grpc.StatusCode.FAILED_PRECONDITION)
        assert of.tensors[0].name in error.details()
        other.channel.close()
        other.lease.leave()
        a.seqs[2] += 1
        parts = a.parts(2, 0, noise(of, 1), work=WORK)
        parts[-1].chunk.crc32c ^= 1
        damaged = refused(lambda: a.stub.Push(iter(parts), timeout=10))
        assert damaged[:2] == ("CHUNK_DAMAGED", grpc.StatusCode.INVALID_ARGUMENT)
        unknown = refused(lambda: observed(a.lease.addresses[0], "nothing"))
        assert unknown[:2] == ("RUN_UNKNOWN", grpc.StatusCode.NOT_FOUND)
        for revision in (1, 2, 3):
            answer = a.push(2, noise(of, revision), again=revision == 1, work=WORK)
            assert answer.result_revision == revision
            a.pull(2, revision=revision)
        code, status, error = refused(lambda: a.pull(2, revision=1))
        assert (code, status) == ("REVISION_GONE", grpc.StatusCode.FAILED_PRECONDITION)
        assert trailer(error, "syncline-newest-revision") == "3"
        waits = a.stub.Pull(pb.PullRequest(run="refusals", fragment=2, revision=4), timeout=0.2)
        assert refused(lambda: next(waits))[:2] == (None, grpc.StatusCode.DEADLINE_EXCEEDED)


def drained_and_finished(control: Control) -> None:
    """An operator drains one; the other commits the budget, and what comes later is fenced."""
    create(
        control,
        "budget",
        strategy="local-sgd",
        sync_every=STEPS,
        codec=FP32,
        expected_replicas=2,
        token_budget=4 * TOKENS,
    )
    of = layout()
    with Replica(control, "budget", "a", of) as a:
        with Replica(control, "budget", "b", of) as b:
            for replica in (a, b):
                replica.push_all(noise(of, 1), work=WORK)
            assert {h.committed_tokens for h in a.pull_all(revision=1)} == {2 * TOKENS}
            b.pull_all(revision=1)
            assert not b.lease.renew()["drain"]
            control.call("POST", "/runs/budget/replicas/b/drain")
            assert b.lease.renew()["drain"]
            assert verdicts(b.push_all(noise(of, 2), work=WORK)) == {pb.VERDICT_ACCEPTED}
        a.push_all(noise(of, 3), work=WORK)
        *_, last = a.pull_all(revision=2)
        assert last.committed_tokens == 4 * TOKENS
        control.call("POST", "/runs/budget/finish")
        assert control.call("GET", "/runs/budget")["state"] == "finished"
        assert a.lease.renew()["run_state"] == "finished"
        end = time.monotonic() + HEARD_S
        while verdicts(a.push_all(noise(of, 4), work=WORK)) != {pb.VERDICT_FENCED}:
            assert time.monotonic() < end, "the sync service never heard that the run has ended"
            time.sleep(0.1)
        a.pull_all(revision=2)


def beside_another(
    control: Control, run: str, address: str, rounds: str, folder: str, name: str
) -> None:
    """Join a run that is there, with the layout that it has; keep what was pushed and pulled."""
    of: Layout = observed(address, run)
    kept: dict[str, Any] = {}
    with Replica(control, run, name, of) as replica:
        for revision in range(1, int(rounds) + 1):
            progress = noise(of, sum(name.encode()) + revision)
            for tensor, value in zip(of.tensors, moved(progress, replica.anchor), strict=True):
                kept[f"{revision} pushed {tensor.name}"] = value
            answers = replica.push_all(progress, work=WORK)
            assert verdicts(answers) == {pb.VERDICT_ACCEPTED}, answers
            replica.pull_all(revision=revision)
            for tensor, value in zip(of.tensors, replica.anchor, strict=True):
                kept[f"{revision} pulled {tensor.name}"] = value.copy()
    np.savez(Path(folder) / f"{name}.npz", **kept)
