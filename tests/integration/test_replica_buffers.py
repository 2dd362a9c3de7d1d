"""Buffers that are saved with a model: allowed while they are equal and nothing changes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncline_proto.errors import ConfigError, LayoutMismatch
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, WIDTH, TinyModel, Trial, arrived, joined, published


class Scaled(nn.Module):
    """A norm's place taken by something with a buffer."""

    scale: Tensor

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((WIDTH,), value))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.scale


class Normed(nn.Module):
    """Batch normalisation, over sequences."""

    def __init__(self, running: bool = True) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(WIDTH, track_running_stats=running)

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(h.transpose(1, 2)).transpose(1, 2)


def trial(cluster: Cluster, run: str, norm: nn.Module, name: str = "one", **more: Any) -> Trial:
    model = TinyModel()
    model.norm = norm  # pyright: ignore[reportAttributeAccessIssue]
    return Trial(cluster.control_url, run, 0, model=model, name=name, settings=QUICK | more)


@pytest.mark.long
def test_a_buffer_that_nothing_changes_is_no_matter(cluster: Cluster) -> None:
    one = trial(cluster, "still", Scaled(0.5))
    with joined(one):
        one.step(8).replica.finish()
        assert one.replica.revision == 2
    with pytest.raises(LayoutMismatch, match="frozen parameters or saved buffers have other"):
        trial(cluster, "still", Scaled(0.25), "two").replica.start()


def test_running_statistics_are_refused_before_there_is_a_run(cluster: Cluster) -> None:
    """Its layout would keep the corrected model out for good."""
    one = trial(cluster, "running", Normed())
    with pytest.raises(ConfigError, match=r"buffer norm\.inner\.running_mean changes in training"):
        one.replica.start()
    one.replica.close(failed=True)
    assert cluster.http.get("/runs/running").status_code == 404
    corrected = trial(cluster, "running", Normed(running=False))
    with joined(corrected):
        corrected.step(4).replica.finish()
        assert corrected.replica.revision == 1


def test_statistics_that_run_later_are_refused_at_the_first_step(cluster: Cluster) -> None:
    one = trial(cluster, "evaluated", Normed())
    one.model.eval()
    one.replica.start()
    one.model.train()
    with pytest.raises(ConfigError, match=r"buffer norm\.inner\.running_mean has changed"):
        one.step()
    one.replica.close(failed=True)


def test_running_statistics_at_rest_are_allowed(cluster: Cluster) -> None:
    one = trial(cluster, "resting", Normed())
    one.model.norm.eval()
    with joined(one):
        one.step(4).replica.finish()
        assert one.replica.revision == 1


def test_a_later_change_is_refused_at_the_boundary_and_never_pushed(cluster: Cluster) -> None:
    one = trial(cluster, "later", Scaled(0.5))
    one.replica.start()
    one.step(4).replica.finish()
    buffer = one.model.get_buffer("norm.scale")
    buffer[3] += 1e-6
    one.step(3)
    with pytest.raises(ConfigError, match=r"buffer norm\.scale has changed"):
        one.step()
    one.replica.close(failed=True)
    assert published(cluster.sync_address, "later")[1] == 1
    assert not any(arrived(cluster.sync_address, "later"))


@pytest.mark.parametrize(("warmup_steps", "seen_after"), [(6, 4), (3, 3)])
def test_a_change_in_the_synchronous_phase_is_refused_and_never_offered(
    cluster: Cluster, warmup_steps: int, seen_after: int
) -> None:
    """Where a boundary would be, and at its end."""
    run = f"phase-{warmup_steps}"
    one = trial(cluster, run, Scaled(0.5), warmup_steps=warmup_steps)
    one.replica.start()
    one.step(2)
    one.model.get_buffer("norm.scale")[3] += 1e-6
    one.step(seen_after - 3)
    with pytest.raises(ConfigError, match=r"buffer norm\.scale has changed"):
        one.step()
    one.replica.close(failed=True)
    assert published(cluster.sync_address, run)[1] == 0
