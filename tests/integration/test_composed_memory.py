"""A rank holds, beside its training, one anchor of its shard and the fragments in flight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.two_ranks import two_ranks

ROUNDS, EVERY, BLOCKS = 2, 4, 14

PROGRAM = """
import json
from threading import Event
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.distributed.fsdp import fully_shard

from syncline import Replica
from syncline.carrier import Direct
from syncline.layout import local_part
from syncline.streamed import Streamed
from syncline_testing.by_hand import ByHand
from syncline_testing.counted import Counted
from syncline_testing.replicas import STEP_TOKENS, TinyModel, batch, loss_of
from syncline_testing.streams import Prompt

torch.set_num_threads(1)
has_pushed = Event()

class Behind(Streamed):
    # Nothing of a push is encoded before all of it is begun, as where the device is behind.
    def encode(self, *given):
        finish = super().encode(*given)
        return lambda: has_pushed.wait() and finish()

told = []
for run, settings in {ways}.items():
    model, scratch = TinyModel(1, {blocks}), Counted()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    carrier = Direct(scratch)
    if run.startswith("gpu"):
        carrier = Behind(scratch, torch.device("cpu"), Prompt(), "beside" in run)
    has_pushed.set()
    with patch("syncline.life.carrier_of", lambda shards, anchors: carrier):
        control = {where}["control_url"]
        replica = Replica(model, optimizer, run=run, settings=settings, control=control)
        replica.start()
    shard = sum(local_part(p).numel() for p in model.parameters())
    joining, scratch.peak = scratch.peak, scratch.held
    with_late = run == "late" and rank == 0
    other = ByHand(SimpleNamespace(**{where}), run) if with_late else None
    for step in range({steps} + 4 * (run == "late")):
        replica.count_tokens(STEP_TOKENS)
        loss_of(model, batch(rank, step)).backward()
        has_pushed.clear()
        optimizer.step()
        has_pushed.set()
        optimizer.zero_grad()
        if other is not None and step in (3, 4):  # pushes too, then closes a round by itself
            for fragment in range(len(other.layout.fragments)):
                other.push(fragment, step - 3)
                other.published(fragment, step - 2)
    replica.finish()
    assert bool(replica.stats.aged) == (run == "late")
    told.append((joining, scratch.peak, shard, replica.revision))
    replica.close()
print(json.dumps(told))
"""

WAYS: dict[str, tuple[dict[str, Any], float]] = {
    "fp32": ({"codec": {"up": "fp32", "down": "fp32"}}, 4 + (4 + 4)),
    "bf16": ({"codec": {"up": "bf16", "down": "bf16"}}, 2 + (2 + 2)),
    "mixed": ({"codec": {"up": "int8", "down": "bf16"}}, 2 + (1.25 + 2)),
    "difference": ({"codec": {"up": "bf16", "down": "int8"}}, 2 + (2 + 2)),
    "overlap": ({"overlap_steps": 2}, 2 + (2 + 2 + 4)),
    # What a push leaves is kept while the next one is under way, whose fragments it may fit.
    "streaming": ({"fragment_groups": EVERY}, 2 + 2 * (2 + 2) / EVERY),
    "streaming-overlap": (
        {"fragment_groups": EVERY, "overlap_steps": 2},
        2 + (1 + 2) * (2 + 2 + 4) / EVERY,
    ),
    # One that came late is kept until it is published, while the next is under way.
    "late": ({"quorum": 1, "expected_replicas": 2}, 2 + (2 + 2 + 2)),
    # All gradients and their mean, whose memory the offer at the end has; then what is published.
    "warmup": ({"warmup_steps": EVERY}, 2 + (4 + 4) + 2),
    "gpu": ({"codec": {"up": "int8", "down": "bf16"}}, 2 + (1.25 + 2 + 4)),
    "gpu-overlap": ({"overlap_steps": 2}, 2 + (2 + 2 + 4 + 4)),
    # The anchor is the device's; a copy of it stays for differences that come.
    "gpu-beside": ({"codec": {"up": "int8", "down": "bf16"}}, 1.25 + 2 + 4),
    "gpu-beside-overlap": ({"overlap_steps": 2}, 2 + 2 + 4 + 4),
    "gpu-beside-difference": ({"codec": {"up": "int8", "down": "int8"}}, 2 + (1.25 + 2 + 4)),
}
"""What is set, and what a rank may hold then: bytes for each element of its shard.

One anchor, and of what is in flight the push, what comes of it, with overlap where it began, and
beside a GPU what is copied from it to be encoded.
"""


@pytest.mark.long
def test_a_rank_holds_an_anchor_and_what_is_in_flight(cluster: Cluster, tmp_path: Path) -> None:
    timeouts = {"lease": 20.0, "round_deadline": 60.0}
    ways = {
        run: {"sync_every": EVERY, "timeouts": timeouts} | more for run, (more, _) in WAYS.items()
    }
    where = {"control_url": cluster.control_url, "sync_address": cluster.sync_address}
    how = {"ways": ways, "blocks": BLOCKS, "steps": ROUNDS * EVERY, "where": where}
    for text in two_ranks(tmp_path, PROGRAM.format(**how)):
        for (run, (_, most)), (joining, peak, shard, revision) in zip(
            WAYS.items(), json.loads(text.splitlines()[-1]), strict=True
        ):
            # It is the most: how near it comes depends on what is in flight at a time.
            assert peak <= most * shard, (run, peak / shard)
            # Its own parameters, offered in fp32, and beside a GPU what is copied to be encoded.
            most = 4 + 4 * run.startswith("gpu")
            assert 2 * shard <= joining <= most * shard, (run, joining / shard)
            assert revision >= ROUNDS
