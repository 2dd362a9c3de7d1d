"""The journey of a synchronous phase: mean gradients, offers for revision 1, then a round as ever.

Written from docs/protocol.md section 8.
"""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np

from independent.control import Control
from independent.layout import Arrays
from independent.replica import Replica, Work, pb, refused, trailer
from independent.rounds import WORK, Rounds, close_to, create, layout, noise

STEPS_OF_PHASE = 2
TOKENS = {"a": 100, "b": 300}
LR = np.float32(0.5)


def gradient(step: int, replica: Replica) -> dict[str, Any]:
    """How the gradient of one inner step is pushed."""
    work = Work(inner_steps=1, tokens=TOKENS[replica.name], first_step=step - 1)
    return {"kind": pb.PUSH_KIND_GRADIENT, "step": step, "work": work}


def two_synchronous_steps(control: Control) -> None:
    """Two replicas go through the phase and one round more; what comes out of turn is told so."""
    fp32 = {"up": "fp32", "down": "fp32"}
    settings = create(
        control,
        "phase",
        strategy="local-sgd",
        warmup_steps=STEPS_OF_PHASE,
        expected_replicas=2,
        codec=fp32,
    )
    of = layout()
    first = noise(of, 0, scale=1.0)
    with (
        Replica(control, "phase", "a", of, offer=first) as a,
        Replica(control, "phase", "b", of) as b,
    ):
        for step in range(1, STEPS_OF_PHASE + 1):
            step_together(step, a, b)
            out_of_turn(step, a, first)
        trained = [value.copy() for value in a.anchor]
        for replica in (a, b):
            end = {"kind": pb.PUSH_KIND_PARAMETERS, "base": 0, "phase": replica.phases[0]}
            for answer in replica.push_all(trained, **end):
                assert answer.verdict in (pb.VERDICT_ACCEPTED, pb.VERDICT_STALE), answer
        for replica in (a, b):
            replica.anchor = of.arrays()
            replica.pull_all(revision=1, phase=replica.phases[0])
            for got, sent in zip(replica.anchor, trained, strict=True):
                assert np.array_equal(got, sent)
        late = a.push(0, first, **gradient(2, a))
        assert late.verdict == pb.VERDICT_STALE
        code, _, error = refused(lambda: a.mean_gradient(2))
        assert code == "REVISION_GONE" and trailer(error, "syncline-newest-revision") == "1"
        rounds = Rounds(trained, settings, a, b)
        rounds.tokens = STEPS_OF_PHASE * sum(TOKENS.values())
        gradients = {"a": noise(of, 3), "b": noise(of, 4)}
        rounds.push(gradients, [pb.VERDICT_ACCEPTED] * 2)
        rounds.pull(gradients, 2)


def step_together(step: int, *replicas: Replica) -> None:
    """One inner step of SGD with the mean over all tokens, which must be what the page says."""
    of = replicas[0].layout
    own = {replica.name: noise(of, 10 * step + i) for i, replica in enumerate(replicas)}
    for replica in replicas:
        for answer in replica.push_all(own[replica.name], **gradient(step, replica)):
            assert answer.verdict == pb.VERDICT_ACCEPTED and answer.result_revision == step
    for replica in replicas:
        mean = replica.mean_gradient(step)
        for number, got in enumerate(mean):
            whole = sum(TOKENS[name] * g[number].astype(np.float64) for name, g in own.items())
            close_to(got, np.asarray(whole / sum(TOKENS.values())))
            replica.anchor[number] -= LR * got


def out_of_turn(step: int, replica: Replica, values: Arrays) -> None:
    """A pseudo-gradient in the phase is STALE; a step that is skipped, or a third, is refused."""
    stale = replica.push(0, values, work=WORK)
    assert stale.verdict == pb.VERDICT_STALE and stale.result_revision == 1
    code, status, _ = refused(lambda: replica.push(0, values, **gradient(step + 2, replica)))
    assert (code, status) == ("INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT)
    again = replica.push(0, values, **gradient(step, replica))
    assert again.verdict == pb.VERDICT_STALE and again.result_revision == step
    other = replica.push(0, values, phase=replica.phases[0] + 1, **gradient(step, replica))
    assert other.verdict == pb.VERDICT_STALE and other.result_revision == step
    code, _, error = refused(lambda: replica.mean_gradient(step, beyond=1))
    assert (code, trailer(error, "syncline-newest-revision")) == ("REVISION_GONE", str(step))
