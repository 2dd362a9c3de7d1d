"""Taking a checkpoint of a run, and beginning a new run from one, over all sync services.

Each service copies the fragments that it owns, all at once; the manifest comes last, and so does
the new run. Nothing here reads or writes where checkpoints lie: the services do.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, TypeVar

from syncline.control import all_alive
from syncline.launch.client import OperatorClient
from syncline.launch.copier import Copier
from syncline.standing import no_cut, standing
from syncline_proto.errors import (
    CheckpointError,
    ConfigError,
    Overloaded,
    RevisionGone,
    RunConflict,
    RunUnknown,
    StoreError,
    SynclineError,
    Unreachable,
)
from syncline_proto.layout import Layout, layout_to_json
from syncline_proto.manifest import Entry, Manifest
from syncline_proto.reports import EventIn
from syncline_proto.rest import (
    Origin,
    RunCreate,
    RunView,
)
from syncline_proto.settings import overlaid
from syncline_proto.tokens import run_tokens
from syncline_proto.v1 import checkpoints_pb2 as pb

T = TypeVar("T")

Told = Callable[[int, int], None]
"""(bytes that are there, all bytes): is told as they go."""

CUTS_MAX = 10
"""Attempts at one cut: a busy run may forget the revision that we ask for before it is pinned."""

BEGIN_S = 60.0
"""How long the services may take to load the run that they fetched."""

LOOK_S = 0.2


@contextmanager
def copiers(client: OperatorClient, token: str | None) -> Generator[list[Copier]]:
    """Connect to all sync services.

    Raises:
        Unreachable: there is none, or one of them is missing; it is named.
    """
    with ExitStack() as stack:
        alive = all_alive(client.sync_services(), client.url)
        yield [stack.enter_context(closing(Copier(one.address, token))) for one in alive]


def save(
    view: RunView, services: Sequence[Copier], place: str, name: str | None, told: Told
) -> tuple[str, Manifest]:
    """Copy the newest revision that every fragment has; the checkpoint's address and manifest.

    Of a run whose rounds do not wait, the newest of each.

    It lies in the folder ``place`` under its ``name``, or else under the run's and the revision's.

    Raises:
        RunConflict: the run has no parameters yet.
        CheckpointError: there is a checkpoint already, or the place refuses.
        RevisionGone: revisions were forgotten faster than they could be pinned, again and again.
        Unreachable: a sync service does not answer, or no living one owns a fragment.
    """
    for attempt in range(CUTS_MAX):
        layout, owners, revision = standing(view, services)
        url = f"{place.rstrip('/')}/{name or f'{view.name}-r{revision}'}"
        try:
            cut = None if view.settings.asynchronous else revision
            entries = _copied(view.name, url, owners, cut, told)
        except RevisionGone as error:
            if attempt == CUTS_MAX - 1:
                raise no_cut(error) from None
            continue
        manifest = _manifest(view, layout, entries)
        services[0].seal(url, manifest)
        return url, manifest
    raise AssertionError("a cut is taken or an error raised")


def restore(
    client: OperatorClient,
    services: Sequence[Copier],
    url: str,
    run: str,
    changes: dict[str, Any],
    told: Told,
) -> RunView:
    """Begin the run ``run`` from the checkpoint at ``url``, with its settings and ``changes``.

    Every service fetches its part first; only then is there a run.

    Raises:
        RunConflict: there is such a run already.
        CheckpointDamaged: a file is damaged; it is named, and there is no run.
        CheckpointError: there is no such checkpoint, or a service cannot take its part.
        ConfigError: a change is none, or would need other fragments.
    """
    manifest = services[0].manifest(url)
    try:
        settings = overlaid(manifest.settings, changes, lambda key: f"run.{key}")
    except ConfigError as error:
        raise ConfigError(f"--set: {error.message}") from None
    if settings.blocks_per_fragment != manifest.settings.blocks_per_fragment:
        raise ConfigError("run.blocks_per_fragment: the fragments stay as the checkpoint has them.")
    _refuse_known(client, run)
    _fetched(manifest, services, url, run, told)
    origin = Origin(checkpoint=url, id=manifest.id, revision=manifest.revision)
    made = RunCreate(name=run, settings=settings, job=_named(manifest.job, run), origin=origin)
    view = client.create_run(made)
    try:
        _begun(services, run, len(manifest.entries))
    except SynclineError as error:
        client.move_run(run, "stop")
        raise CheckpointError(f"{run} could not begin, and was stopped: {error.message}") from error
    # Where it stands the services tell the control plane, which may have heard some of it by now.
    tokens = run_tokens({entry.fragment: entry.committed_tokens for entry in manifest.entries})
    return view.model_copy(update={"revision": manifest.revision, "committed_tokens": tokens})


@contextmanager
def failure_told(client: OperatorClient, run: str) -> Generator[None]:
    """Let the run's log have a save that comes to nothing: once, of all services.

    What was asked for wrongly, or was called off, is for the caller alone.
    """
    try:
        yield
    except (CheckpointError, Overloaded, RevisionGone, StoreError, Unreachable) as error:
        with suppress(SynclineError):
            client.tell(run, EventIn(kind="checkpoint.failed", message=error.message))
        raise


def _copied(
    run: str, url: str, owners: dict[int, Copier], revision: int | None, told: Told
) -> tuple[Entry, ...]:
    """Let each service copy the fragments that it owns; their entries, in order."""
    found: dict[int, Entry] = {}

    def taken(answer: pb.SaveFragmentsResponse) -> None:
        for one in answer.saved:
            found[one.fragment] = Entry(
                fragment=one.fragment,
                file=one.file,
                bytes=one.bytes,
                crc32c=one.crc32c,
                revision=one.revision,
                committed_tokens=one.committed_tokens,
            )

    parts: dict[Copier, list[int]] = {}
    for fragment, owner in owners.items():
        parts.setdefault(owner, []).append(fragment)
    streams = {owner: owner.save(run, url, revision, part) for owner, part in parts.items()}
    _together(streams, taken, told)
    return tuple(found[fragment] for fragment in sorted(found))


def _fetched(
    manifest: Manifest, services: Sequence[Copier], url: str, run: str, told: Told
) -> None:
    """Let every service fetch what it owns of the new run.

    Raises:
        CheckpointError: a fragment was fetched by none.
    """
    found: set[int] = set()
    streams = {one: one.restore(run, url) for one in services}
    _together(streams, lambda answer: found.update(answer.restored), told)
    lacking = [entry.fragment for entry in manifest.entries if entry.fragment not in found]
    if lacking:
        raise CheckpointError(
            f"No sync service that is alive owns fragment {lacking[0]}; start those that lack."
        )


def _together(streams: dict[Copier, Iterator[T]], take: Callable[[T], None], told: Told) -> None:
    """Follow one stream of each service, all at once; the first that fails ends them all."""
    moved: dict[Copier, tuple[int, int]] = {}

    def follow(copier: Copier, stream: Iterator[Any]) -> None:
        for answer in stream:
            take(answer)
            moved[copier] = (answer.bytes_done, answer.bytes_total)
            far = list(moved.values())
            told(sum(done for done, _ in far), sum(total for _, total in far))

    with ThreadPoolExecutor(len(streams)) as pool:
        follows = [pool.submit(follow, copier, stream) for copier, stream in streams.items()]
        try:
            for done in as_completed(follows):
                done.result()
        except BaseException:  # Ctrl+C, too
            for copier in streams:
                copier.call_off()
            raise


def _manifest(view: RunView, layout: Layout, entries: tuple[Entry, ...]) -> Manifest:
    return Manifest(
        id=uuid.uuid4().hex,
        run=view.name,
        revision=min(one.revision for one in entries),
        committed_tokens=run_tokens({one.fragment: one.committed_tokens for one in entries}),
        created_at=time.time(),
        fingerprint=layout.fingerprint(),
        layout=json.loads(layout_to_json(layout)),
        settings=view.settings,
        job=view.job,
        entries=entries,
    )


def _refuse_known(client: OperatorClient, run: str) -> None:
    try:
        client.run(run)
    except RunUnknown:
        return
    raise RunConflict(f"There is a run {run} already; restore under another name.")


def _named(job: dict[str, Any], run: str) -> dict[str, Any]:
    """The job under the new run's name."""
    section = job.get("run")
    return {**job, "run": {**section, "name": run}} if isinstance(section, dict) else job


def _begun(services: Sequence[Copier], run: str, fragments: int) -> None:
    """Wait until the services together have the whole run at work.

    Raises:
        StoreDamaged: one of them has not fetched it.
        Unreachable: they take too long, or do not answer.
    """
    deadline = time.monotonic() + BEGIN_S
    while True:
        owned: set[int] = set()
        for service in services:
            try:
                answer = service.status(run)
            except (RunUnknown, Unreachable):  # it has not heard of it yet, or starts again
                continue
            owned |= {state.fragment for state in answer.fragments if state.initialised}
        if len(owned) == fragments:
            return
        if time.monotonic() > deadline:
            raise Unreachable(
                f"the sync services have not loaded it within {BEGIN_S:g} s; see that they run, "
                "and their logs, then restore it under another name."
            )
        time.sleep(LOOK_S)
