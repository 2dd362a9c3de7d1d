"""Parameters held in bf16: rounds lose nothing of what they are, nor of what is trained."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, TinyModel, Trial, joined, published, together

ROUNDS, EVERY = 4, 4
PLAIN = {**QUICK, "strategy": "local-sgd"}

Values = dict[str, Tensor]


def held_in_bf16(seed: int) -> TinyModel:
    model = TinyModel(seed)
    model.bfloat16()
    return model


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("down", ["fp32", "bf16"])
def test_one_replica_trains_bit_for_bit_as_if_nothing_had_been(
    cluster: Cluster, down: str, overlap: int
) -> None:
    how = {**PLAIN, "codec": {"up": "fp32", "down": down}, "overlap_steps": overlap}
    run = f"alone-{down}-{overlap}"
    ours = Trial(cluster.control_url, run, 0, settings=how, model=held_in_bf16(0))
    bare = Trial(None, "bare", 0, model=held_in_bf16(0))
    with joined(bare, ours):
        bare.step(ROUNDS * EVERY)
        ours.step(ROUNDS * EVERY)
        ours.replica.finish()
        assert ours.replica.stats.rounds == ROUNDS
    expected = bare.parameters()
    for name, value in ours.parameters().items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("down", ["fp32", "bf16"])
def test_two_replicas_move_what_is_kept_in_fp32_by_the_mean_of_their_progress(
    cluster: Cluster, down: str
) -> None:
    """Over several rounds: neither what rounding hides from them is lost, nor is it progress."""
    how = {**PLAIN, "min_replicas": 2, "codec": {"up": "fp32", "down": down}}
    run = f"two-{down}"
    # Alike at first, since whoever is quicker offers revision 0.
    a, b = (
        Trial(cluster.control_url, run, seed, settings=how, model=held_in_bf16(0))
        for seed in range(2)
    )
    with joined(a, b):
        kept = {name: value.float() for name, value in a.parameters().items()}
        for revision in range(1, ROUNDS + 1):
            anchors = {name: value.float() for name, value in a.parameters().items()}
            together(lambda: a.step(EVERY), lambda: b.step(EVERY))
            trained = [trial.parameters() for trial in (a, b)]
            together(a.replica.finish, b.replica.finish)
            values, newest = published(cluster.sync_address, run)
            assert newest == revision
            for name, array in values.items():
                ends = [own[name].float() for own in trained]
                kept[name] = kept[name] + (sum(ends, -2 * anchors[name])) / 2
                value = torch.from_numpy(array)
                # Of what is published in bf16 half a unit of its 8 bits is rounded away.
                rounded = 2**-8 if down == "bf16" else 0.0
                torch.testing.assert_close(value, kept[name], rtol=rounded, atol=1e-6)
                for trial in (a, b):
                    parameter = trial.model.get_parameter(name)
                    assert torch.equal(parameter, value.bfloat16()), name
