"""gRPC <-> checkpoints: which files are copied where, and what its caller hears meanwhile.

How calls count, and on which threads they work, ``copies`` says. Changes nothing of a run that is
at work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from syncline_proto.depot import Depot
from syncline_proto.errors import (
    CheckpointDamaged,
    CheckpointError,
    ConfigError,
    InvalidRequest,
    RunConflict,
)
from syncline_proto.manifest import MANIFEST, Entry, Manifest, manifest_of, sealed
from syncline_proto.names import NAME_WORDS, valid_name
from syncline_proto.reports import EventIn
from syncline_proto.v1 import checkpoints_pb2 as pb
from syncline_proto.v1 import checkpoints_pb2_grpc
from syncline_sync.aside import Aside, not_ours, sweep_aside
from syncline_sync.copies import COPIES, Copies, Copying
from syncline_sync.files import writing
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.pins import Pin, Pinned, pin_all, pin_folder, unpin
from syncline_sync.pool import to_the_end
from syncline_sync.residence import Residence
from syncline_sync.run import RunHost
from syncline_sync.seating import is_inside
from syncline_sync.shared import Shared

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class CheckpointServicer(checkpoints_pb2_grpc.CheckpointServiceServicer):
    """The calls of ``syncline.sync.v1.CheckpointService``."""

    def __init__(self, residence: Residence, shared: Shared) -> None:
        self._residence, self._shared = residence, shared
        self._copies = Copies()
        self._restoring: set[str] = set()

    async def close(self) -> list[str]:
        """Begin no more, and wait a little for what is under way; as ``Copies.close``."""
        return await self._copies.close()

    async def SaveFragments(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, request: pb.SaveFragmentsRequest, context: Context
    ) -> AsyncIterator[pb.SaveFragmentsResponse]:
        with self._copies.call(_not_copied(request)):
            async with aclosing(self._save(request)) as answers:
                async for answer in answers:
                    yield answer

    async def SealCheckpoint(
        self, request: pb.SealCheckpointRequest, context: Context
    ) -> pb.SealCheckpointResponse:
        with self._copies.call(f"the checkpoint {request.url} is not sealed"):
            manifest = await self._copies.do(_manifest, request.manifest)
            await self._copies.do(_seal, await self._depot(request.url), manifest)
            if await self._residence.knows(manifest.run):
                said = f"Revision {manifest.revision} is kept as {request.url}."
                self._shared.report(manifest.run, EventIn(kind="checkpoint.saved", message=said))
        return pb.SealCheckpointResponse()

    async def ReadCheckpoint(
        self, request: pb.ReadCheckpointRequest, context: Context
    ) -> pb.ReadCheckpointResponse:
        with self._copies.call(f"the checkpoint {request.url} is not read"):
            depot = await self._depot(request.url)
            manifest = await self._copies.do(depot.manifest)
        return pb.ReadCheckpointResponse(manifest=manifest.model_dump_json())

    async def RestoreFragments(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, request: pb.RestoreFragmentsRequest, context: Context
    ) -> AsyncIterator[pb.RestoreFragmentsResponse]:
        with self._copies.call(_not_restored(request)):
            async with self._alone(request.run), aclosing(self._restore(request)) as answers:
                async for answer in answers:
                    yield answer

    async def _save(
        self, request: pb.SaveFragmentsRequest
    ) -> AsyncGenerator[pb.SaveFragmentsResponse]:
        run = await self._residence.run(_name(request.run))
        wanted = None if request.newest else request.revision
        pins, tokens = _pins(run, wanted, request.fragments)
        # What is published may still be on its way to the disk, or wait for a lull: together they
        # wait once. The disk has few threads, so no more are written at a time than ever.
        await asyncio.gather(*(run.runners[fragment].holding.written() for fragment in pins))
        folder = pin_folder(self._shared.root)
        taking = asyncio.ensure_future(self._copies.do(pin_all, folder, pins))
        try:
            held = await asyncio.shield(taking)
            depot = await self._depot(request.url)
            await self._copies.do(_see_free, depot)
            total = sum(pinned.entry.bytes for pinned in held.values())
            if await self._copies.do(depot.shares_disk, self._shared.root):
                kept_free = self._residence.commit_bytes
                await self._copies.do(_see_room, "saved", self._shared.root, total, kept_free)
            copying = Copying(total, _not_copied(request))
            jobs = [partial(_copied, f, p, depot, copying, tokens[f]) for f, p in held.items()]
            async with aclosing(self._copies.followed(jobs, copying)) as steps:
                async for saved in steps:
                    yield pb.SaveFragmentsResponse(
                        bytes_done=copying.done, bytes_total=copying.total, saved=saved
                    )
        finally:
            try:
                with suppress(Exception):  # it has been told, or its caller is gone
                    await to_the_end(taking)
            finally:
                await self._copies.tidy(unpin, folder)

    async def _restore(
        self, request: pb.RestoreFragmentsRequest
    ) -> AsyncGenerator[pb.RestoreFragmentsResponse]:
        depot = await self._depot(request.url)
        manifest = await self._copies.do(depot.manifest)
        # The set itself: what begins while the sweep looks about is not to be swept.
        await self._copies.do(sweep_aside, self._shared.root, self._restoring)
        aside = Aside(self._shared.root, request.run, manifest.id, self._shared.seat)
        mine = self._shared.seat.owned(manifest.parsed_layout)
        total = sum(manifest.entries[f].bytes for f in mine)
        if await self._copies.do(aside.keep):
            yield pb.RestoreFragmentsResponse(bytes_done=total, bytes_total=total, restored=mine)
            return
        largest = max((manifest.entries[f].bytes for f in mine), default=0)
        room = total + COPIES * largest  # each is there twice for a moment
        kept_free = self._residence.commit_bytes
        await self._copies.do(_see_room, "restored", self._shared.root, room, kept_free)
        is_whole = False
        try:
            places = await self._copies.do(aside.begin, manifest)
            copying = Copying(total, _not_restored(request))
            jobs = [
                partial(_fetched, aside, places[f], manifest.entries[f], depot, copying)
                for f in mine
            ]
            async with aclosing(self._copies.followed(jobs, copying)) as steps:
                async for restored in steps:
                    yield pb.RestoreFragmentsResponse(
                        bytes_done=copying.done, bytes_total=copying.total, restored=restored
                    )
            await self._copies.do(aside.finish)
            is_whole = True
        finally:
            if not is_whole:
                await self._copies.tidy(aside.drop)

    async def _depot(self, url: str) -> Depot:
        """A checkpoint's folder, by its address.

        Raises:
            InvalidRequest: it is no address.
            ConfigError: it is in the midst of our own files, or what its store needs is not
                installed here.
        """
        return await self._copies.do(_depot_beside, self._shared.root, url)

    @asynccontextmanager
    async def _alone(self, run: str) -> AsyncGenerator[None]:
        """Keep a new run's name for one restore.

        Raises:
            RunConflict: it is taken.
        """
        if _name(run) in self._restoring:
            raise RunConflict(
                f"A restore under the name {run} is under way; wait for its end, or take another."
            )
        self._restoring.add(run)
        try:
            if await self._residence.knows(run):
                raise RunConflict(f"There is a run {run} already; restore under another name.")
            yield
        finally:
            self._restoring.discard(run)


def _not_copied(request: pb.SaveFragmentsRequest) -> str:
    return f"run {request.run} is not copied to {request.url}"


def _not_restored(request: pb.RestoreFragmentsRequest) -> str:
    return f"run {request.run} is not restored from {request.url}"


def _name(run: str) -> str:
    if not valid_name(run):
        raise InvalidRequest(f"run: {run[:80]!r} is not a name ({NAME_WORDS}).")
    return run


def _pins(
    run: RunHost, revision: int | None, fragments: Iterable[int]
) -> tuple[dict[int, Pin], dict[int, int]]:
    """How each fragment's file of a published revision is pinned, and its committed tokens.

    ``revision`` None: of the newest of each.

    Raises:
        InvalidRequest: a fragment is not this service's, or there is none.
        RevisionGone: a fragment has not published this revision, or does not keep it.
    """
    wanted = list(fragments)
    if not wanted or len(set(wanted)) < len(wanted) or not run.runners.keys() >= set(wanted):
        raise InvalidRequest(
            f"fragments: name each once, of the {len(run.runners)} of run {run.name} that are "
            "this sync service's; OpenRun says which."
        )
    pins: dict[int, Pin] = {}
    tokens: dict[int, int] = {}
    for fragment in wanted:
        holding = run.runners[fragment].holding
        number = (holding.revisions.newest or 0) if revision is None else revision
        published = dict(holding.revisions.values).get(number)
        if published is None:
            raise holding.revisions.missing(number)
        tokens[fragment] = published.saved.committed_tokens
        pins[fragment] = partial(holding.pin, number)
    return pins, tokens


def _copied(
    fragment: int, pinned: Pinned, depot: Depot, copying: Copying, tokens: int
) -> pb.SavedFragment:
    return pb.SavedFragment(
        fragment=fragment,
        file=pinned.copy(fragment, depot, copying.moved),
        bytes=pinned.entry.bytes,
        crc32c=pinned.entry.crc32c,
        revision=pinned.entry.revision,
        committed_tokens=tokens,
    )


def _fetched(
    aside: Aside, place: FragmentStore, entry: Entry, depot: Depot, copying: Copying
) -> int:
    aside.fetch(place, entry, depot, copying.moved)
    return entry.fragment


def _depot_beside(root: Path, url: str) -> Depot:
    depot = Depot.at(url)
    if "://" not in url and is_inside(root, url):
        raise ConfigError(
            f"{url[:200]} is in the data folder of a sync service; choose a place beside it."
        )
    return depot


def _manifest(text: str) -> Manifest:
    """Parse the text of a manifest.

    Raises:
        InvalidRequest: it is no manifest.
    """
    try:
        return manifest_of(text, "manifest")
    except CheckpointDamaged as error:
        raise InvalidRequest(error.message) from None


def _seal(depot: Depot, manifest: Manifest) -> None:
    """Write a manifest where all that it names is.

    Raises:
        CheckpointError: a file is missing or of another size, or there is a manifest.
    """
    sizes = depot.sizes()
    for entry in manifest.entries:
        if sizes.get(entry.file) != entry.bytes:
            raise CheckpointError(f"{depot.url}/{entry.file} is not there as it was saved.")
    try:
        depot.create(MANIFEST, sealed(manifest))
    except FileExistsError:
        raise _there_already(depot) from None


def _see_free(depot: Depot) -> None:
    """See that the depot is free.

    Raises:
        CheckpointError: there is a checkpoint.
    """
    if MANIFEST in depot.sizes():
        raise _there_already(depot)


def _see_room(done: str, root: Path, wanted: int, kept_free: int) -> None:
    """See that what is to be ``done`` leaves the runs at work the room for their next rounds.

    Raises:
        CheckpointError: it does not.
    """
    with not_ours(), writing(root):
        disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    if free < wanted + kept_free:
        raise CheckpointError(
            f"The checkpoint is not {done}. It takes {wanted:,} bytes, the next rounds of the "
            f"runs here {kept_free:,}, and the disk of {root} has {free:,} free. Free more, then "
            "try again: the runs here go on."
        )


def _there_already(depot: Depot) -> CheckpointError:
    """That there is one; it may be from a save that was killed before its name was on the disk,
    and who hears this counts on it.
    """
    depot.settle()
    return CheckpointError(f"There is a checkpoint at {depot.url} already; choose another name.")
