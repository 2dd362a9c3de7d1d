"""The commands of ``syncline``, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from syncline.cli import about, checkpoints, data, doctor, replicas, runs, scaler, train, up, watch
from syncline.cli.options import EXIT_CODES

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


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=about.app_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """What stands before a command."""


app.command()(up.demo)
app.command()(up.up)
app.command()(train.train)
app.command()(train.export)
app.command()(train.sample)
app.command()(watch.status)
app.command()(watch.events)
app.command()(watch.rounds)
app.command()(scaler.scaler)
app.add_typer(runs.app, name="runs")
app.add_typer(replicas.app, name="replicas")
app.add_typer(data.app, name="data")
app.add_typer(checkpoints.app, name="checkpoints")
app.command()(doctor.doctor)
app.command()(about.version)
app.command("exit-codes")(about.exit_codes)
runs.app.command("events")(watch.events)

for _group in (app, runs.app, replicas.app, data.app, checkpoints.app):
    for _command in _group.registered_commands:
        _command.epilog = EXIT_CODES
