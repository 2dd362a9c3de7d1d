"""Nothing is compiled while a lease runs: its heartbeats would wait for that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK
from syncline_testing.warm import warm

TRAINED = """
import json, sys
assert "numba" not in sys.modules, "it would tell nothing"

from syncline.control import ControlClient
from syncline.interrupts import end
from syncline_proto import compiled
from syncline_testing.replicas import Trial, joined

control, run, settings = json.loads(sys.argv[1])
made, register, told = compiled._made, ControlClient.register, []

def noted_loop(function, *given, **how):
    told.append(function.__qualname__)
    return made(function, *given, **how)

def noted(client, *given):
    told.append("register")
    return register(client, *given)

compiled._made, ControlClient.register = noted_loop, noted
trial = Trial(control, run, 1, settings=settings)
with joined(trial):
    trial.step(9)
print(json.dumps([told, trial.replica.revision]))
end(0)
"""


@pytest.mark.parametrize(
    ("up", "down"),
    [("fp32", "fp32"), ("bf16", "bf16"), ("int8", "int8"), ("int4", "bf16"), ("topk", "fp32")],
)
def test_all_that_pushes_and_pulls_need_is_there_before_the_lease(
    cluster: Cluster, up: str, down: str
) -> None:
    codec = {"codec": {"up": up, "down": down}}
    settings: dict[str, Any] = QUICK | codec | {"min_replicas": 1}
    given = json.dumps([cluster.control_url, up, settings])
    with warm("-c", TRAINED, given) as program:
        out, err = program.communicate(timeout=100)
    assert program.returncode == 0, err
    told, revision = json.loads(out.splitlines()[-1])
    assert revision >= 2
    assert told[-1] == "register"
    assert len(told) > 1
