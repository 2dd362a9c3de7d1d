"""`syncline-control`: reads the settings, sets up the log, serves until told to end.

Ctrl+C ends with 130, SIGTERM with 0, an error of ours with its exit code and one sentence; a
fault of ours with 1, one sentence, and where it happened in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Annotated

import structlog
import typer

from syncline_control.settings import PREFIX, ControlSettings, resolved
from syncline_proto.errors import SynclineError
from syncline_proto.loading import INTERRUPTED, Loading
from syncline_proto.words import misspelt


def configure_logs(*, as_json: bool) -> None:
    """Send our own lines and those of libraries to stderr in one form."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    last = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            last,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of what we are told by raising
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


log = structlog.get_logger()

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, as `syncline --help` has it
)


@app.command()
def run(
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where to listen. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        str | None, typer.Option(metavar="PORT", help="0 takes a free one. [default: 8500]")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A SQLite file, or a URL of PostgreSQL. [default: syncline-control.db]",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", help="What callers must send. Safer in the environment than here."
        ),
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="No token although others can reach us.")
    ] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Log in JSON lines.")] = None,
) -> None:
    """Serve the control plane: runs, replicas, leases, events and the live page.

    \b
    Examples:
      syncline-control
      syncline-control --port 8600 --database /var/lib/syncline/control.db
      syncline-control --database postgresql://syncline@db.example/syncline
      SYNCLINE_CONTROL_TOKEN=secret syncline-control --host 0.0.0.0

    \b
    Environment, under the flags:
      SYNCLINE_CONTROL_HOST, _PORT, _DATABASE, _TOKEN, _INSECURE, _LOG_JSON

    \b
    Exit codes (all of them: syncline exit-codes):
      0 told to end (SIGTERM), 130 Ctrl+C, 1 a fault of ours, 2 wrong usage,
      10 a setting is wrong, 11 the port is in use, 40 the database refuses
    """
    try:
        settings = resolved(
            {
                "host": host,
                "port": port,
                "database": database,
                "token": token,
                "insecure": insecure,
                "log_json": log_json,
            }
        )
        configure_logs(as_json=settings.log_json)
        for why in misspelt(os.environ, PREFIX, ControlSettings):
            log.warning("environment", why=why)
        with Loading():  # here, since it takes a while: wrong flags are told at once
            from syncline_control.server import serve
        number = asyncio.run(serve(settings))
    except SynclineError as error:
        typer.echo(f"syncline-control: {error.message}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:  # before the server listens to signals
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(INTERRUPTED if number == signal.SIGINT else 0)


def main() -> None:
    """Entry point of the command: every end is one sentence and a documented exit code."""
    try:
        app()
    except Exception as fault:  # the outermost loop of this process
        log.exception("control_plane.failed")
        said = f"{type(fault).__name__}: {fault}".partition("\n")[0]
        typer.echo(f"syncline-control: A fault of ours ({said}); please report it.", err=True)
        sys.exit(SynclineError.exit_code)
