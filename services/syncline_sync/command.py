"""syncline-sync: its flags, its log, and how every end of it is told.

One service or all that share the fragments; what one does is in ``process``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from typing import Annotated, Any, NoReturn, TextIO, cast

import structlog
import typer
from pydantic import ValidationError

from syncline_proto.descriptors import raise_limit
from syncline_proto.errors import ConfigError, SynclineError
from syncline_proto.loading import INTERRUPTED
from syncline_proto.words import flag_or_variable, misspelt, sentence
from syncline_sync.allocator import keep_freed_memory
from syncline_sync.lines import Lines, is_out
from syncline_sync.process import fault, serve
from syncline_sync.settings import PREFIX, SyncSettings
from syncline_sync.supervisor import ChildFailed, supervise

log = structlog.get_logger()


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
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, Lines(sys.stderr))),
    )


def _shown(metavar: str, what: str) -> Any:
    return typer.Option(metavar=metavar, help=what)


def run(
    control: Annotated[
        str | None,
        _shown("URL", "The control plane; several with commas. [default: http://127.0.0.1:8500]"),
    ] = None,
    host: Annotated[str | None, _shown("HOST", "Where to listen. [default: 127.0.0.1]")] = None,
    port: Annotated[
        str | None, _shown("PORT", "gRPC, for replicas; 0 takes a free one. [default: 50051]")
    ] = None,
    health_port: Annotated[
        str | None, _shown("PORT", "Plain gRPC health, for probes. [default: 50052]")
    ] = None,
    metrics_port: Annotated[
        str | None, _shown("PORT", "HTTP /metrics, for Prometheus. [default: 9101]")
    ] = None,
    advertise: Annotated[
        str | None, _shown("HOST:PORT", "What replicas connect to. [default: host and port]")
    ] = None,
    data: Annotated[
        str | None, _shown("DIR", "The store: the checkpoint. [default: syncline-data]")
    ] = None,
    shards: Annotated[
        str | None,
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
        str | None, _shown("BYTES", "Room for pushes in flight, such as 512M. [default: 2G]")
    ] = None,
    fall_back: Annotated[
        str | None,
        _shown("RUN@N", "What is damaged of a run up to revision N may be given up."),
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
      token is another, 40 the disk refuses or hangs, 60 one of --shards dies again and again,
      or does not end
    """
    # Numbers have come as text: the settings say what is wrong with one, be it the environment's.
    settings = _settings({key: value for key, value in locals().items() if value is not None})
    _configure_logging(settings.log_json, settings.own_name if settings.parent else "")
    for why in misspelt(os.environ, PREFIX, SyncSettings) if not settings.parent else ():
        log.warning("environment", why=why)
    raise typer.Exit(INTERRUPTED if _until_told(settings) is signal.SIGINT else 0)


def _settings(given: dict[str, Any]) -> SyncSettings:
    """Check what the command line gave.

    Raises:
        ConfigError: one of them is wrong; its flag is named, or its variable.
    """
    try:
        return SyncSettings(**given)
    except ValidationError as error:
        raise ConfigError(sentence(error, name=flag_or_variable(given, PREFIX))) from None


def _until_told(settings: SyncSettings) -> signal.Signals | None:
    """Be one service, or watch over all that share the fragments; return which signal ended it."""
    if settings.shards > 1 and settings.index is None:
        return asyncio.run(supervise(settings))
    raise_limit()
    keep_freed_memory()
    runner = asyncio.Runner()
    try:
        return runner.run(serve(settings))
    finally:
        with contextlib.suppress(RuntimeError):  # it wants a thread, for which there may be no room
            runner.close()


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
        _say(fault(error))
        _leave(1)


def _leave(code: int) -> NoReturn:
    """End the process, and wait for no thread: whoever is left waits for a disk, or a store."""
    left = [one for one in threading.enumerate() if one is not threading.main_thread()]
    are_out = [is_out(stream) for stream in (sys.stdout, sys.stderr)]
    if all(are_out) and all(one.daemon for one in left):
        sys.exit(code)
    os._exit(code)


def _say(words: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"syncline-sync: {words}\n")
