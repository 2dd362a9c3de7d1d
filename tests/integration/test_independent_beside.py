"""Two replicas that share no code with us average with one of ours, in one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from syncline_testing.cluster import Cluster
from syncline_testing.foreign import arrives, generate, start
from syncline_testing.replicas import QUICK, Trial

ROUNDS, NAMES = 3, ("foreign-a", "foreign-b")


def test_two_of_them_average_with_a_replica_of_ours(tmp_path: Path) -> None:
    stubs = generate(tmp_path)
    settings = {**QUICK, "strategy": "local-sgd", "expected_replicas": 3}
    settings["timeouts"] = {"lease": 20.0, "round_deadline": 100.0}
    pushed, pulled = {}, {}
    with Cluster(tmp_path) as cluster:
        trial = Trial(cluster.control_url, "beside", 1, settings=settings)
        trial.replica.start()
        told = ("beside-another", "beside", cluster.sync_address, str(ROUNDS), str(tmp_path))
        programs = [start(stubs, cluster, *told, name) for name in NAMES]
        try:
            for revision in range(1, ROUNDS + 1):
                trial.step(4)
                pushed[revision] = trial.parameters()
                trial.replica.finish()
                pulled[revision] = trial.parameters()
        finally:
            for program in programs:
                arrives(program)
            trial.replica.close()
    assert trial.replica.stats.stale == 0
    kept = [np.load(tmp_path / f"{name}.npz") for name in NAMES]
    for revision in range(1, ROUNDS + 1):
        for name, ours in pulled[revision].items():
            parts = [theirs[f"{revision} pushed {name}"] for theirs in kept]
            parts.append(pushed[revision][name].numpy())
            mean = np.mean(np.stack(parts).astype(np.float64), axis=0)
            np.testing.assert_allclose(ours.numpy(), mean, rtol=1e-5, atol=1e-6)
            for theirs in kept:
                assert np.array_equal(theirs[f"{revision} pulled {name}"], ours.numpy())
