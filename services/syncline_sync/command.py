"""syncline-sync: the composition root of the sync service, and nothing else.

Knows clock, ports, store, host and control link at once; the rest knows one of them each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import structlog
import typer
from pydantic import ValidationError

from syncline_proto.compiled import compile_all
from syncline_proto.errors import ConfigError, StoreError, SynclineError
from syncline_proto.loading import INTERRUPTED
from syncline_proto.locks import only_owner
from syncline_proto.rest import SyncServiceHello
from syncline_proto.words import sentence
from syncline_sync.allocator import keep_freed_memory
from syncline_sync.aside import sweep_aside
from syncline_sync.budget import Budget
from syncline_sync.checkpoints import CheckpointServicer
from syncline_sync.control import ControlLink, ReportQueue
from syncline_sync.descriptors import raise_limit
from syncline_sync.host import Host
from syncline_sync.metrics import Metrics
from syncline_sync.pins import sweep_pins
from syncline_sync.pool import DISK_THREADS
from syncline_sync.run import Shared
from syncline_sync.seating import take_seat
from syncline_sync.servicer import SyncServicer
from syncline_sync.serving import address, bind
from syncline_sync.settings import SyncSettings
from syncline_sync.slabs import KEPT_BYTES, Slabs
from syncline_sync.supervisor import ChildFailed, outlived, supervise

log = structlog.get_logger()

LAST_REPORTS_S = 2.0
"""How long the end waits for the control plane to take what is queued."""


@dataclass(slots=True)
class End:
    """Why and when the process stops: a signal, or the first error."""

    came: asyncio.Event = field(default_factory=asyncio.Event)
    sign: signal.Signals | None = None
    error: BaseException | None = None

    def come(self, error: BaseException | None = None) -> None:
        self.error = self.error or error
        self.came.set()

    def ask(self, sign: signal.Signals) -> None:
        """A signal has come: the first one counts."""
        self.sign = self.sign or sign
        self.come()


async def serve(settings: SyncSettings) -> signal.Signals | None:
    """Serve until SIGTERM or SIGINT, and return which; or until something is wrong for good.

    Raises:
        SynclineError: a port is taken, or the store refuses.
    """
    end = End()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, end.ask, sign)
    metrics = Metrics()
    pool = ThreadPoolExecutor(settings.threads or max(os.cpu_count() or 1, 4), "compute")
    reports = ReportQueue()
    budget = Budget(settings.staging_bytes)
    disk = ThreadPoolExecutor(DISK_THREADS, "disk")
    link: ControlLink | None = None
    shared = Shared(
        settings.data,
        pool,
        disk,
        budget,
        metrics,
        reports.put,
        end.come,
        Slabs(min(KEPT_BYTES, settings.staging_bytes)),
        settings.seat,
        lambda: link.hurry() if link else None,
    )
    await shared.compute(compile_all)  # or the first round would wait for it
    host = Host(shared)
    checkpoints = CheckpointServicer(host, shared)
    doors = bind(settings, SyncServicer(host, shared), checkpoints, metrics)
    data = _data_folder(settings.data)  # not earlier: a start in vain leaves none behind
    # A store has one writer.
    mine = only_owner(data / "lock", f"Another sync service keeps its store in {data}", "--data")
    take_seat(data, settings.seat.index, settings.shards)
    sweep_pins(data)
    sweep_aside(data)
    hello = SyncServiceHello(
        name=settings.own_name,
        index=settings.seat.index,
        shards=settings.shards,
        address=settings.advertise or address(settings.host, doors.port),
        instance=host.instance,
    )
    headers = {"authorization": f"Bearer {settings.token}"} if settings.token else {}
    async with httpx.AsyncClient(
        base_url=settings.control, headers=headers, trust_env=False
    ) as client:
        snapshot = data / "membership.json"
        link = ControlLink(client, hello, host.follow, reports, snapshot, host.votes)
        if settings.fall_back:
            await host.fall_back(settings.fall_back)
        await link.adopt_snapshot()
        await doors.open()
        log.info("listening", address=hello.address, data=str(data), seat=str(settings.seat))
        works = [link.run, host.sweep]
        if settings.parent:
            works.append(lambda: _until_alone(settings, end))
        tasks = [asyncio.create_task(_guard(work, end)) for work in works]
        await end.came.wait()
        why = end.sign.name if end.sign else type(end.error).__name__ if end.error else "alone"
        log.info("ending: no more calls are taken, commits are finished", why=why)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _, hanging = await asyncio.gather(doors.close(), checkpoints.close())
        for what in hanging:
            log.warning("a checkpoint's store does not answer; ending without it", left=what)
        try:
            await host.stop()
        finally:
            await link.send_last(LAST_REPORTS_S)
    for threads in (pool, disk):
        threads.shutdown(wait=True, cancel_futures=True)
    mine.close()
    if end.error is not None:
        raise end.error
    log.info("ended")
    return end.sign


async def _guard(work: Callable[[], Awaitable[None]], end: End) -> None:
    """Run a task of the process; its failure ends the process."""
    try:
        await work()
    except Exception as error:  # the outermost loop of this task
        end.come(error)


async def _until_alone(settings: SyncSettings, end: End) -> None:
    await outlived(settings.parent)
    end.come()


def _data_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"Cannot write to {path}: {error.strerror}; choose another with --data."
        ) from error
    return path


def _configure_logging(as_json: bool, name: str = "") -> None:
    """``name`` goes into every line: that of a service whose lines stand among others'."""

    def named(_logger: Any, _method: str, line: Any) -> Any:
        return {**line, "service": name} if name else line

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each poll tells nothing
    structlog.configure(
        processors=[
            named,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,  # without locals: a token is among them
            structlog.processors.JSONRenderer()
            if as_json
            else structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _shown(metavar: str, what: str) -> Any:
    return typer.Option(metavar=metavar, help=what)


def run(
    control: Annotated[
        str | None, _shown("URL", "The control plane. [default: http://127.0.0.1:8500]")
    ] = None,
    host: Annotated[str | None, _shown("HOST", "Where to listen. [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, _shown("PORT", "gRPC, for replicas; 0 takes a free one. [default: 50051]")
    ] = None,
    health_port: Annotated[
        int | None, _shown("PORT", "Plain gRPC health, for probes. [default: 50052]")
    ] = None,
    metrics_port: Annotated[
        int | None, _shown("PORT", "HTTP /metrics, for Prometheus. [default: 9101]")
    ] = None,
    advertise: Annotated[
        str | None, _shown("HOST:PORT", "What replicas connect to. [default: host and port]")
    ] = None,
    data: Annotated[
        Path | None, _shown("DIR", "The store: the checkpoint. [default: syncline-data]")
    ] = None,
    shards: Annotated[
        int | None,
        _shown("K", "Services that share the fragments; without --index all, here. [default: 1]"),
    ] = None,
    index: Annotated[
        str | None,
        _shown("I", "Which of them this is, from 0; host: as its host name ends (sync-2)."),
    ] = None,
    name: Annotated[
        str | None, _shown("NAME", "Its name among the sync services. [default: sync-I]")
    ] = None,
    staging_bytes: Annotated[
        int | None, _shown("BYTES", "Room for pushes in flight. [default: 2147483648]")
    ] = None,
    fall_back: Annotated[
        str | None, _shown("RUN", "A damaged run goes on from the revision before the damage.")
    ] = None,
    token: Annotated[
        str | None, _shown("TOKEN", "Sent and asked for. Safer in the environment than here.")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="No token although others can reach us.")
    ] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Log in JSON lines.")] = None,
) -> None:
    """Serve the data plane: take pushes, merge them, publish and keep every revision.

    \b
    Examples:
      syncline-sync
      syncline-sync --control http://control:8500 --data /var/lib/syncline
      syncline-sync --shards 4
      SYNCLINE_SYNC_TOKEN=secret syncline-sync --host 0.0.0.0 --advertise sync-0:50051

    \b
    Environment, under the flags:
      SYNCLINE_SYNC_CONTROL, _HOST, _PORT, _HEALTH_PORT, _METRICS_PORT, _ADVERTISE,
      _DATA, _SHARDS, _INDEX, _NAME, _STAGING_BYTES, _FALL_BACK, _TOKEN, _INSECURE,
      _LOG_JSON; and without a flag _THREADS (for arithmetic; 0: one per core, at least
      4) and _PARENT (a process id: end once that is not our parent any more)

    \b
    Exit codes (all of them: syncline exit-codes):
      0 told to end (SIGTERM), 130 Ctrl+C, 1 a fault of ours, 2 wrong usage, 10 a setting
      is wrong, 11 a port is in use, 15 no such run to --fall-back, 19 the control plane's
      token is another, 40 the disk refuses or hangs, 60 one of --shards dies again and again
    """
    given = {key: value for key, value in locals().items() if value is not None}
    try:
        settings = SyncSettings(**given)
    except ValidationError as error:
        raise ConfigError(sentence(error, name=lambda key: "--" + key.replace("_", "-"))) from None
    whole = settings.shards > 1 and settings.index is None
    _configure_logging(settings.log_json, settings.own_name if settings.parent else "")
    if whole:
        raise typer.Exit(INTERRUPTED if asyncio.run(supervise(settings)) is signal.SIGINT else 0)
    raise_limit()
    keep_freed_memory()
    sign = asyncio.run(serve(settings))
    raise typer.Exit(INTERRUPTED if sign is signal.SIGINT else 0)


def main() -> None:
    """Entry point: every end is one sentence and a documented exit code."""
    try:
        _configure_logging(as_json=False)  # until the settings are known
        app = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        app.command()(run)
        app()
    except SystemExit as end:  # typer's: all went well, or its usage was wrong
        _leave(end.code if isinstance(end.code, int) else 0)
    except SynclineError as error:
        _say(error.message)
        _leave(error.ended_with if isinstance(error, ChildFailed) else error.exit_code)
    except KeyboardInterrupt:  # before the service listens to signals
        typer.echo("Interrupted.", err=True)
        _leave(INTERRUPTED)
    except Exception as error:  # the outermost loop of the process
        log.exception("a fault of ours")
        _say(f"a fault of ours: {type(error).__name__}; see the log.")
        _leave(1)


def _leave(code: int) -> NoReturn:
    """End the process, and wait for no thread: whoever is left waits for a disk, or a store."""
    left = [one for one in threading.enumerate() if one is not threading.main_thread()]
    if all(one.daemon for one in left):
        sys.exit(code)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"syncline-sync: {sentence}\n")
