"""What the control plane says of a run, and a trainer of its end, for tests that ask none."""

from __future__ import annotations

from typing import Any

from syncline.train.progress import Ending, Snapshot
from syncline_proto.rest import Registration, RunState, RunView
from syncline_proto.settings import RunSettings


def running(name: str, **shown: Any) -> RunView:
    """A run with the settings it has by default; ``shown`` is what is seen of it."""
    return RunView(
        name=name,
        state=RunState.RUNNING,
        settings=RunSettings(),
        settings_version=1,
        created_at=0.0,
        **shown,
    )


def registration(replica: str) -> Registration:
    """A first lease in the run ``run``, where no sync service is known yet."""
    return Registration(
        replica=replica,
        incarnation=1,
        ordinal=0,
        lease_s=10.0,
        heartbeat_s=1.0,
        run=running("run"),
        sync_services=[],
    )


def ending(tokens: int) -> Ending:
    """A training that went well, after so many tokens of all, half of them its own."""
    return Ending(
        reason="budget",
        bits_per_byte_start=8.0,
        held_out_local=2.0,
        bits_per_byte_local=2.9,
        held_out_merged=1.9,
        bits_per_byte_merged=2.8,
        tokens=tokens,
        own_tokens=tokens // 2,
        seconds=100.0,
        tokens_per_second=5000.0,
        exposed_sync_s=2.0,
        exposed_sync_share=0.02,
        bytes_up=20_000_000,
        bytes_down=2000,
        rounds=9,
        revision=9,
        inner_step=100,
        skipped_steps=0,
        exported=None,
    )


NOW = Snapshot(
    phase="training",
    inner_step=40,
    tokens=400_000,
    tokens_total=1_000_000,
    loss=2.5,
    bits_per_byte=3.6,
    held_out_loss=2.6,
    held_out_bits_per_byte=3.75,
    lr=1e-3,
    grad_norm=1.0,
    tokens_per_second=1000.0,
    mfu=0.412,
    round=3,
    revision=3,
    exposed_sync_s=1.0,
    exposed_sync_share=0.1,
    bytes_up=12_345_678,
    bytes_down=1_234,
    stale=2,
    aged=3,
    last_age=1,
    seconds=10.0,
    eta_s=30.0,
)
"""What a trainer tells amid a run."""
