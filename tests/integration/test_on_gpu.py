"""A replica on a GPU: the host waits for it nowhere, and it holds no more than it is to.

All else is tested on the CPU, and with SYNCLINE_TEST_DEVICE=cuda where a GPU is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from syncline import Replica
from syncline.settings import AnchorDevice
from syncline.train.checkpoint import Checkpoints, Position
from syncline.train.ranks import RankGroup
from syncline_testing.cluster import Cluster

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BLOCKS, WIDTH, EVERY = 12, 1024, 4
LARGEST = WIDTH * WIDTH + WIDTH
"""Elements of a fragment."""
NUMEL = BLOCKS * LARGEST
SETTINGS: dict[str, Any] = {
    "sync_every": EVERY,
    "timeouts": {"lease": 20.0, "round_deadline": 60.0},
}
WAYS: dict[str, dict[str, Any]] = {
    "layerwise": {},
    "int8": {"codec": {"up": "int8", "down": "int8"}},
    "overlap": {"overlap_steps": 2},
    "mixed": {"overlap_steps": 2, "overlap_mix": 0.5},
    "streaming": {"overlap_steps": 1, "fragment_groups": EVERY},
}
ANCHORS: list[AnchorDevice] = ["cpu", "model"]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))
        self.to("cuda")

    def forward(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        return h.square().mean()


class Loop:
    """Steps that look at no value."""

    def __init__(self, fused: bool | None = None) -> None:
        """``fused``: of an AdamW; None: it is SGD with momentum."""
        self.model = Stack()
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
            if fused is None
            else torch.optim.AdamW(parameters, lr=1e-3, fused=fused)
        )
        self._input = torch.randn(64, WIDTH, device="cuda")

    def steps(
        self,
        count: int,
        before: Callable[[], object] = lambda: None,
        after: Callable[[Tensor], object] = lambda loss: None,
    ) -> None:
        for _ in range(count):
            before()
            self.loss = cast(Tensor, self.model(self._input))
            self.loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            after(self.loss)


def replica_of(loop: Loop, cluster: Cluster, what: str, way: str, anchors: AnchorDevice) -> Replica:
    return Replica(
        loop.model,
        loop.optimizer,
        run=f"{what}-{way}-{anchors}",
        settings=SETTINGS | WAYS[way],
        control=cluster.control_url,
        anchor_device=anchors,
    )


@pytest.mark.parametrize("anchors", ANCHORS)
@pytest.mark.parametrize("way", WAYS)
def test_the_host_waits_for_the_gpu_nowhere(
    cluster: Cluster, way: str, anchors: AnchorDevice
) -> None:
    """Of what waits without being asked PyTorch makes an error, in all threads, then."""
    loop = Loop()
    with replica_of(loop, cluster, "waits", way, anchors) as replica:

        def count() -> None:
            replica.count_tokens(1)

        def report(loss: Tensor) -> None:
            replica.report(loss=loss)

        loop.steps(2 * EVERY, count, report)
        torch.cuda.set_sync_debug_mode("error")
        try:
            loop.steps(3 * EVERY, count, report)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        assert replica.reported == {"loss": loop.loss.item()}
        replica.finish()
        assert replica.stats.rounds >= 4


@pytest.mark.parametrize("anchors", ANCHORS)
@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_holds_what_comes_up_and_anchors_where_they_are_to_lie(
    cluster: Cluster, way: str, anchors: AnchorDevice
) -> None:
    """At rest its anchors, in bf16, or nothing; beside, at most two fragments in fp32 on their way.

    What an anchor on the GPU has more than the parameters is one tensor at a time.
    """
    loop = Loop()
    held, peak = measured(lambda: loop.steps(3 * EVERY))
    replica = replica_of(loop, cluster, "holds", way, anchors)
    with replica:
        loop.steps(EVERY, lambda: replica.count_tokens(1))
        now, most = measured(lambda: loop.steps(3 * EVERY, lambda: replica.count_tokens(1)))
    beside = anchors == "model"
    lie, rounding = beside * 2 * NUMEL, 512 * 2 * BLOCKS  # the allocator's blocks
    assert lie <= now - held <= lie + 2 * 4 * LARGEST + rounding
    assert most - peak <= lie + (2 + beside) * 4 * LARGEST + rounding


@pytest.mark.parametrize("fused", [False, True])
def test_who_resumes_goes_on_as_if_nothing_had_been(tmp_path: Path, fused: bool) -> None:
    """A fused AdamW counts its steps on the GPU, another on the CPU."""
    loops = [Loop(fused=fused) for _ in range(2)]
    checkpoints = Checkpoints(tmp_path, keep=1, ranks=RankGroup(device=torch.device("cuda")))
    here, there = loops
    here.steps(3)
    position = Position(run="run", inner_step=3, tokens=3, stream={}, world=1)
    checkpoints.save(position, here.model, here.optimizer)
    checkpoints.load(there.model, there.optimizer, run="run", name="adamw")
    for loop in loops:
        loop.steps(2)
    for one, other in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(one, other)


def measured(act: Callable[[], None]) -> tuple[int, int]:
    """Bytes that tensors take of the GPU after it, and the most meanwhile."""
    gc.collect()  # what other tests have left
    act()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    act()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
