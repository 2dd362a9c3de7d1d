"""A real sync service whose rounds do not wait: windows of several pushes, with momentum.

What the service is to hold is worked out here, push by push; in the same bits where it is killed
in the midst of a window.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from chaos.reference import Folded, Window, advanced, bf16, merged
from syncline_proto.codec import Float32
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import direction
from syncline_testing.service import RUN, flat_layout, service
from syncline_testing.sync_process import SIZE, known_run, process

MOMENTUM, WINDOW = 0.9, 3


def settings(down: str = "fp32", **outer: Any) -> RunSettings:
    return RunSettings.model_validate(
        {
            "strategy": "async",
            "sync_seconds": None,
            "window": WINDOW,
            "penalty": {"enabled": False, "step_power": 0.0},
            "outer": {"lr": 0.5, "momentum": MOMENTUM, "clip": None, "age_guard": None, **outer},
            "codec": {"up": "fp32", "down": down},
        }
    )


def values(seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


PUSHES = [("a", 0), ("b", 0), ("a", 1), ("b", 2), ("a", 3), ("a", 5), ("b", 0)]
"""By whom, and from which revision: the first two windows, and the beginning of the third."""

KILLED_AT = 4
"""Pushes: in the midst of the second window."""


def test_a_kill_in_the_midst_of_a_window_changes_no_bit(tmp_path: Path) -> None:
    given = settings("int8", restart_every=2)
    known_run(tmp_path, given)
    theta, m, window = values(0), np.zeros(SIZE, np.float32), Window(WINDOW)
    held, done, seqs = bf16(theta), 0, {"a": 1, "b": 0}
    for until in (KILLED_AT, len(PUSHES)):
        with process(tmp_path) as p:
            p.ready()
            if not done:
                p.open()
                p.push(theta, "a", kind=pb.PUSH_KIND_PARAMETERS)
            for replica, base in PUSHES[done:until]:
                seqs[replica] += 1
                push, age = values(10 + done), done - base
                answer = p.push(push, replica, seq=seqs[replica], base_revision=base)
                done += 1
                assert (answer.verdict, answer.result_revision) == (pb.VERDICT_ACCEPTED, done)
                kept = (1.0 + max(0, age - WINDOW + 1) / WINDOW) ** -given.late.power
                folded = Folded(push, kept, 1.0, kept)
                theta, m = merged(theta, m, [folded], given.outer, 1.0, window)
                window = window.after([age])
                held = advanced(held, theta)
                assert p.payload(done) == held
            p.signal(signal.SIGKILL)
            p.ended()
    assert (window.done, window.number) == (1, 2)
    path = tmp_path / "runs" / RUN / "00000" / f"r{done:08d}.safetensors"
    with safe_open(path, framework="np") as stored:
        assert stored.get_tensor("parameters").tobytes() == theta.tobytes()
        assert stored.get_tensor("momentum").tobytes() == m.tobytes()


TURNED = {"direction": {"enabled": True, "agree": 0.9}}


def turned(push: Float32, m: Float32, given: RunSettings) -> Float32:
    d = push.copy()
    direction.correct(d, m, 1.0, (0, SIZE), given.outer.direction)
    return d


@pytest.mark.parametrize("outer", [{}, TURNED, {**TURNED, "restart_every": 2}], ids=str)
def test_a_push_is_turned_to_the_momentum_as_it_stands(tmp_path: Path, outer: Any) -> None:
    """With what the window has brought so far; to none where it is to be forgotten."""
    given = settings(**outer)

    async def scenario() -> None:
        async with service(tmp_path, given) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(SIZE), "a")
            theta, m, window = values(0), np.zeros(SIZE, np.float32), Window(WINDOW)
            await s.offer(theta, "a")
            for number in range(8):
                push = values(1) + values(10 + number)
                await s.push(push, "a", base_revision=number)
                if outer and window.numbers(given.outer, 1)[0] > 0.0:
                    push = turned(push, m, given)
                folded = Folded(push, 1.0, 1.0, 1.0)
                theta, m = merged(theta, m, [folded], given.outer, 1.0, window)
                window = window.after([0])
                _, pulled = await s.pull(revision=number + 1)
                assert np.array_equal(pulled, theta), number

    asyncio.run(scenario())
