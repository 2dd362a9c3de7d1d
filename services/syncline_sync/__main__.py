"""syncline-sync: the composition root of the sync service, and nothing else.

Knows clock, ports, store, host and control link at once; the rest knows one of them each.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated

import httpx
import structlog
import typer
from pydantic import ValidationError

from syncline_proto.errors import ConfigError, StoreError, SynclineError
from syncline_proto.rest import SyncServiceHello
from syncline_sync.budget import Budget
from syncline_sync.control import ControlLink, ReportQueue
from syncline_sync.host import Host, Shared
from syncline_sync.metrics import Metrics
from syncline_sync.servicer import SyncServicer
from syncline_sync.serving import bind
from syncline_sync.settings import SyncSettings

log = structlog.get_logger()


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
        SynclineError: a port is taken, the store refuses, or a stored file is damaged.
    """
    end = End()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, end.ask, sign)
    data = _data_folder(settings.data)
    metrics = Metrics()
    pool = ThreadPoolExecutor(settings.threads or max(os.cpu_count() or 1, 4), "compute")
    reports = ReportQueue()
    shared = Shared(data, pool, Budget(settings.staging_bytes), metrics, reports.put, end.come)
    host = Host(shared)
    doors = bind(settings, SyncServicer(host, shared), metrics)
    mine = _only_writer(data)
    hello = SyncServiceHello(
        name=settings.name,
        address=settings.advertise or f"{settings.host}:{doors.port}",
        instance=host.instance,
    )
    headers = {"authorization": f"Bearer {settings.token}"} if settings.token else {}
    async with httpx.AsyncClient(
        base_url=settings.control, headers=headers, trust_env=False
    ) as client:
        link = ControlLink(client, hello, host.follow, reports, data / "membership.json")
        await link.adopt_snapshot()
        await doors.open()
        log.info("serving", address=hello.address, data=str(data), control=settings.control)
        tasks = [asyncio.create_task(_guard(work, end)) for work in (link.run, host.sweep)]
        await end.came.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await doors.close()
    await host.stop()
    pool.shutdown(wait=True, cancel_futures=True)
    mine.close()
    if end.error is not None:
        raise end.error
    return end.sign


async def _guard(work: Callable[[], Awaitable[None]], end: End) -> None:
    """Run a task of the process; its failure ends the process."""
    try:
        await work()
    except Exception as error:  # the outermost loop of this task
        end.come(error)


def _data_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise StoreError(f"Cannot write to {path}: {error.strerror}; choose --data.") from error
    return path


def _only_writer(path: Path) -> IO[bytes]:
    """Lock the folder until the process ends, however it ends: a store has one writer."""
    lock = (path / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        why = f"Another sync service keeps its store in {path}; stop it, or choose --data."
        raise ConfigError(why) from error
    return lock


def _configure_logging(as_json: bool) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each poll tells nothing
    structlog.configure(
        processors=[
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


def run(
    control: Annotated[
        str | None, typer.Option(help="Control plane, e.g. http://host:8500")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="gRPC port; 0 picks one")] = None,
    health_port: Annotated[int | None, typer.Option(help="Plain gRPC health, for probes")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="HTTP /metrics")] = None,
    advertise: Annotated[str | None, typer.Option(help="HOST:PORT that replicas use")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the store")] = None,
    name: Annotated[str | None, typer.Option(help="Name among the sync services")] = None,
    staging_bytes: Annotated[int | None, typer.Option(help="Room for pushes in flight")] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="No token although others can reach us")
    ] = None,
    log_json: Annotated[bool | None, typer.Option(help="Log as JSON lines")] = None,
) -> None:
    """Run the sync service.

    Every flag can come from the environment (SYNCLINE_SYNC_PORT=50051). SYNCLINE_SYNC_TOKEN is the
    token that the control plane and all callers share.

    Example: syncline-sync --control http://control:8500 --host 0.0.0.0 --data /data
    """
    given = {key: value for key, value in locals().items() if value is not None}
    try:
        settings = SyncSettings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        flags = "".join(f"--{part}: ".replace("_", "-") for part in first["loc"])
        why = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{flags}{why}.") from error
    _configure_logging(settings.log_json)
    sign = asyncio.run(serve(settings))
    raise typer.Exit(130 if sign is signal.SIGINT else 0)


def main() -> None:
    """Entry point: every end is one sentence and a documented exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    _configure_logging(as_json=False)  # until the settings are known
    try:
        app()
    except SynclineError as error:
        _say(error.message)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # the outermost loop of the process
        log.exception("a fault of ours")
        _say(f"a fault of ours: {type(error).__name__}; see the log.")
        sys.exit(1)


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"syncline-sync: {sentence}\n")


if __name__ == "__main__":
    main()
