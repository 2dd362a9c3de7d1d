"""What the way of a push and of a pull takes memory for, stage by stage: nothing is copied twice.

Python's own account of memory (``tracemalloc``) has every array and every bytes object. Each stage
may take what it makes, and little besides: one copy more of a chunk, or of a payload, is too much.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages import PULLED_BYTES, PUSHED_BYTES, Stages, chunk_of, sealed
from syncline_proto.codec import codec_of
from syncline_sync.core import merge
from syncline_sync.stored import sent_of

NUMEL = 3_000_000
LITTLE = PULLED_BYTES // 2
"""Pieces that fit into a processor's cache, and objects: less than a chunk."""


def peak(work: Callable[[], Any]) -> int:
    """Bytes that ``work`` has at a time beyond what there was before; it is done once before."""
    work()
    tracemalloc.start()
    try:
        made = work()
        most = tracemalloc.get_traced_memory()[1]
        del made
        return most
    finally:
        tracemalloc.stop()


@pytest.fixture(params=["fp32", "bf16", "int8", "int4"])
def stages(request: pytest.FixtureRequest, tmp_path: Path) -> Stages:
    up: str = request.param
    return Stages(tmp_path, NUMEL, up, "int8" if up in ("int8", "int4") else up)


def test_a_payload_is_encoded_into_its_place(stages: Stages) -> None:
    assert peak(stages._encode) <= LITTLE


def test_chunks_are_written_in_one_copy_and_read_in_none(stages: Stages) -> None:
    payload = stages.payload.size
    whole = stages.payload.data, stages.up, PUSHED_BYTES
    assert peak(lambda: list(sealed(*whole))) <= payload + LITTLE
    messages = list(sealed(*whole))
    assert peak(lambda: [chunk_of(message) for message in messages]) <= LITTLE


def test_a_push_is_staged_in_slabs_that_are_used_again(stages: Stages) -> None:
    stages._encode()
    messages = list(sealed(stages.payload.data, stages.up, PUSHED_BYTES))
    stages._stage(messages).free()

    def stage() -> None:
        stages._stage(messages).free()

    beside = codec_of(stages.up).size(codec_of(stages.up).grain)
    last = stages.payload.size % max(1, slab_bytes(stages))
    assert peak(stage) <= last + beside + LITTLE, "but what is less than a slab"


def slab_bytes(stages: Stages) -> int:
    shard = stages._stage(sealed(stages.payload.data, stages.up, PUSHED_BYTES))
    size = codec_of(stages.up).size(shard._in_slab)
    shard.free()
    return size


def test_a_push_is_folded_by_pieces(stages: Stages) -> None:
    stages._encode()
    shard = stages._stage(sealed(stages.payload.data, stages.up, PUSHED_BYTES))
    push = [shard.payload()]
    assert peak(lambda: merge.fold(stages.sum, push, 1.0, is_first=True)) <= LITTLE
    assert peak(lambda: merge.fold(stages.sum, push, 1.0)) <= LITTLE


def test_an_outer_step_makes_nothing_but_the_difference(stages: Stages) -> None:
    stages.sum[:] = 1e-3
    made = codec_of(stages.down).size(NUMEL) if stages.by_difference else 0
    assert peak(stages._step) <= made + LITTLE


def test_what_is_sent_of_a_revision_is_written_where_it_lies(stages: Stages) -> None:
    if stages.by_difference:
        return
    stages.spare = np.empty(NUMEL, np.float32)
    assert peak(lambda: sent_of(stages.parameters, stages.down, stages.spare)) <= LITTLE


def test_a_pull_is_taken_in_where_it_belongs(stages: Stages) -> None:
    stages.sum[:] = 1e-3
    sent = stages._publish(stages._step())
    messages = list(sealed(sent, stages.down, PULLED_BYTES))
    assert peak(lambda: stages._take(messages)) <= LITTLE
    assert peak(lambda: stages.carrier.put(stages.model, stages.pulled)) <= LITTLE
