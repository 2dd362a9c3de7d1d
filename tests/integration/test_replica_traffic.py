"""What a replica of several ranks sends and receives is what all of them do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, TinyModel
from syncline_testing.two_ranks import two_ranks

ACT = """
import json
from syncline_testing.replicas import STEP_TOKENS, Trial, batch, loss_of

trial = Trial({control!r}, "two", 0, settings={settings!r})
told = []
with trial.replica as replica:
    for step in range(8):
        replica.count_tokens(STEP_TOKENS)
        loss_of(trial.model, batch(0, step)).backward()
        trial.optimizer.step()
        trial.optimizer.zero_grad()
        if step % 4 == 3:
            replica.finish()
            exchange = replica._life._exchange
            own, all_of_it = (exchange.bytes_up, exchange.bytes_down), replica.stats
            told.append([*own, all_of_it.bytes_up, all_of_it.bytes_down])
print(json.dumps(told))
"""


@pytest.mark.long
def test_bytes_are_those_of_both_ranks(cluster: Cluster, tmp_path: Path) -> None:
    """Each sends a part of what both hold, and receives all of it."""
    act = ACT.format(control=cluster.control_url, settings=QUICK)
    first, second = (json.loads(out.splitlines()[-1]) for out in two_ranks(tmp_path, act))
    model_bytes = 4 * sum(parameter.numel() for parameter in TinyModel().parameters())
    for one, other in zip(first, second, strict=True):
        assert one[:2] != one[2:] and other[:2] != other[2:], "not of one alone"
        assert one[2:] == other[2:] == [one[0] + other[0], one[1] + other[1]]
    assert second[1][2] - second[0][2] == model_bytes
    assert second[1][3] - second[0][3] == 2 * model_bytes
