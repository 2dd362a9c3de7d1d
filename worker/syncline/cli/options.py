"""Options and arguments that several commands share, each said once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from syncline.launch.client import OperatorClient

DEFAULT_CONTROL = "http://127.0.0.1:8500"

Control = Annotated[
    str,
    typer.Option(
        "--control", envvar="SYNCLINE_CONTROL", metavar="URL", help="The control plane's address."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="SYNCLINE_TOKEN",
        metavar="TEXT",
        help="The token that the control plane asks for.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's name.")]
ReplicaName = Annotated[str, typer.Argument(metavar="REPLICA", help="The replica's name.")]
JobFile = Annotated[str, typer.Argument(metavar="JOB.toml", help="The job's file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one setting of the job, such as optimizer.lr=1e-3. May be repeated.",
        show_default=False,
    ),
]
MaybeRun = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Only this run's.", show_default=False),
]


def connect(control: str, token: str | None) -> OperatorClient:
    """Return a client; imports what it needs only now."""
    from syncline.launch.client import OperatorClient

    return OperatorClient(control, token)
