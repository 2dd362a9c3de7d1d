"""``syncline``: the commands put together, and the one place where their errors end.

Every error of ours ends in one sentence and its exit code, every other fault in one sentence that
says how to see more, Ctrl+C in 130. A traceback is for SYNCLINE_DEBUG=1 alone.
"""

from __future__ import annotations

import sys

import typer

from syncline.cli import about, data, doctor, output, replicas, runs, train, up, watch
from syncline.cli.options import EXIT_CODES
from syncline.faults import FAULT, said_of, trace_if_asked
from syncline_proto.errors import SynclineError

INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help is read as fast as it is printed
    help="""Train one language model on machines that cannot afford to talk at every step.

    \b
    First steps:
      syncline demo                 watch two replicas train, then sample from the result
      syncline up job.toml          do the same with a job of your own
      syncline doctor               see whether this machine is ready
    \b
    A run whose services are elsewhere:
      syncline status --watch --control http://10.0.0.5:8500
      syncline train job.toml --control http://10.0.0.5:8500

    """
    + EXIT_CODES,
)
app.command()(up.demo)
app.command()(up.up)
app.command()(train.train)
app.command()(train.export)
app.command()(train.sample)
app.command()(watch.status)
app.command()(watch.events)
app.command()(watch.rounds)
app.add_typer(runs.app, name="runs")
app.add_typer(replicas.app, name="replicas")
app.add_typer(data.app, name="data")
app.command()(doctor.doctor)
app.command()(about.version)
app.command("exit-codes")(about.exit_codes)
runs.app.command("events")(watch.events)

for _group in (app, runs.app, replicas.app, data.app):
    for _command in _group.registered_commands:
        _command.epilog = EXIT_CODES


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; return the exit code."""
    try:
        app(arguments, prog_name="syncline")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        return INTERRUPTED
    except SynclineError as problem:
        trace_if_asked()
        return output.error(problem)
    except Exception as fault:
        trace_if_asked()
        output.error(SynclineError(said_of(fault)))
        return FAULT
    return 0
