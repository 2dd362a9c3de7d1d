"""Checkpoints by hand: a run of two replicas, and the calls of CheckpointService one by one."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.layout import Layout, layout_to_json
from syncline_proto.manifest import Entry, Manifest
from syncline_proto.rest import Origin
from syncline_proto.settings import RunSettings
from syncline_proto.tokens import run_tokens
from syncline_proto.v1 import checkpoints_pb2 as pb
from syncline_proto.v1 import sync_pb2
from syncline_sync.files import Tensor, array_of, arrays_of, reading
from syncline_testing.service import Service, code_of, flat_layout, service

SIZE = 3000
LAYOUT = flat_layout(SIZE, 2)
FRAGMENTS = range(2)
SETTINGS = RunSettings.model_validate(
    {"min_replicas": 2, "expected_replicas": 2, "penalty": {"detector_rounds": 2}}
)
MEMBERS = {"a": 1, "b": 1}


def values(*seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


async def started(s: Service) -> None:
    """Give every fragment that is the service's a revision 0."""
    await s.members(MEMBERS)
    for replica in MEMBERS:
        await s.open(LAYOUT, replica)
    for fragment in s.shared.seat.owned(LAYOUT):
        await s.offer(values(fragment), "a", fragment=fragment)
        await s.pull(fragment=fragment, revision=0, header_only=True)


@asynccontextmanager
async def at_work(root: Path) -> AsyncIterator[Service]:
    """A service over this folder, whose run has ``started``."""
    async with service(root, SETTINGS) as s:
        await started(s)
        yield s


async def round_of(s: Service, base: int) -> None:
    """Both replicas push to all fragments; who is late to none waits for the next revision."""
    fragments = s.shared.seat.owned(LAYOUT)
    pushes = [
        s.push(
            values(base, fragment, number) * (1 + number),
            replica,
            fragment=fragment,
            base_revision=base,
            tokens=10,
        )
        for fragment in fragments
        for number, replica in enumerate(MEMBERS)
    ]
    for push in pushes:  # one after another: the order of folding is part of the result
        assert (await push).verdict == sync_pb2.VERDICT_ACCEPTED
    for fragment in fragments:
        await s.pull(fragment=fragment, revision=base + 1, header_only=True)


def code(error: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> str:
    """Our own code of a failed call."""
    return code_of(error.value)


async def copied(
    s: Service, url: str, revision: int, fragments: Iterable[int]
) -> list[pb.SavedFragment]:
    """Let a service copy these fragments of its run."""
    request = pb.SaveFragmentsRequest(run=s.run, url=url, revision=revision, fragments=fragments)
    answers = [answer async for answer in s.checkpoints.SaveFragments(request, timeout=60)]
    assert answers[-1].bytes_done == answers[-1].bytes_total > 0
    return [one for answer in answers for one in answer.saved]


def manifest_of(s: Service, layout: Layout, saved: Iterable[pb.SavedFragment]) -> Manifest:
    """The manifest of these files."""
    names = Entry.model_fields
    rows = sorted(saved, key=lambda one: one.fragment)
    entries = tuple(Entry(**{name: getattr(one, name) for name in names}) for one in rows)
    return Manifest(
        id=uuid.uuid4().hex,
        run=s.run,
        revision=entries[0].revision,
        committed_tokens=run_tokens({one.fragment: one.committed_tokens for one in entries}),
        created_at=1.0,
        fingerprint=layout.fingerprint(),
        layout=json.loads(layout_to_json(layout)),
        settings=s.settings,
        job={},
        entries=entries,
    )


async def save(s: Service, layout: Layout, url: str, revision: int) -> Manifest:
    """Take a whole checkpoint of a run that one service owns."""
    manifest = manifest_of(s, layout, await copied(s, url, revision, range(len(layout.fragments))))
    await seal(s, url, manifest)
    return manifest


async def seal(s: Service, url: str, manifest: Manifest) -> None:
    text = manifest.model_dump_json()
    await s.checkpoints.SealCheckpoint(pb.SealCheckpointRequest(url=url, manifest=text))


async def fetch(s: Service, url: str, run: str) -> list[int]:
    """Let a service fetch a checkpoint for a run that is yet to come."""
    request = pb.RestoreFragmentsRequest(run=run, url=url)
    answers = [answer async for answer in s.checkpoints.RestoreFragments(request, timeout=60)]
    return [one for answer in answers for one in answer.restored]


async def begin(s: Service, url: str, manifest: Manifest, members: dict[str, int]) -> None:
    """Name the service's run as the control plane would: with the checkpoint as its origin."""
    s.origin = Origin(checkpoint=url, id=manifest.id, revision=manifest.revision)
    await s.members(members)


def stored(root: Path, run: str, fragment: int, revision: int) -> dict[str, Tensor]:
    """The arrays of a revision's file."""
    path = root / "runs" / run / f"{fragment:05d}" / f"r{revision:08d}.safetensors"
    with reading(path) as file:
        return {name: array_of(file, array) for name, array in arrays_of(file)[0].items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether arrays are equal, bit for bit."""
    return one.keys() == other.keys() and all(
        np.array_equal(one[name].view(np.uint32), other[name].view(np.uint32)) for name in one
    )
