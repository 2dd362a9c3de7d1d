"""Nothing is compiled while a lease runs: its heartbeats would wait for that."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.processes import python
from syncline_testing.replicas import QUICK

TRAINED = """
import json, sys
assert "numba" not in sys.modules, "it would tell nothing"

import httpx

from syncline.control import ControlClient
from syncline.interrupts import end
from syncline_proto import compiled
from syncline_testing.replicas import Trial, joined
from syncline_testing.waiting import wait_until

control, run, settings, then = json.loads(sys.argv[1])
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
    patch = {"settings": {"codec": then}}
    httpx.patch(f"{control}/v1/runs/{run}/settings", json=patch).raise_for_status()

    def goes_by_it():
        trial.step(1)
        return trial.replica.settings.codec.model_dump() == then

    wait_until(goes_by_it, 60, "it goes by the new codec")
    trial.step(9)
print(json.dumps([told, trial.replica.revision]))
end(0)
"""


CODECS = (("fp32", "fp32"), ("bf16", "bf16"), ("int8", "int8"), ("int4", "bf16"), ("topk", "fp32"))
"""Each run begins with one, and goes on with the next."""


@pytest.mark.parametrize(
    "at", [0, *(pytest.param(at, marks=pytest.mark.long) for at in (1, 2, 3)), 4]
)
def test_all_that_pushes_and_pulls_need_is_there_before_the_lease(
    cluster: Cluster, at: int
) -> None:
    first, then = ({"up": up, "down": down} for up, down in (CODECS[at - 1], CODECS[at]))
    settings: dict[str, Any] = QUICK | {"codec": first, "min_replicas": 1}
    given = json.dumps([cluster.control_url, f"from-{first['up']}", settings, then])
    # Nothing is loaded in it before it begins.
    with python("-c", TRAINED, given, PYTHONPATH=os.pathsep.join(sys.path)) as program:
        out, err = program.communicate(timeout=100)
    assert program.returncode == 0, err
    told, revision = json.loads(out.splitlines()[-1])
    assert revision >= 4
    assert told[-1] == "register"
    assert len(told) > 1
