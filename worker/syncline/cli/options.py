"""Options and arguments that several commands share, each said once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from syncline.launch.client import OperatorClient

DEFAULT_CONTROL = "http://127.0.0.1:8500"


def _set(words: str) -> Any:
    """The option ``--set``, which may come several times."""
    words = f"{words} May be repeated."
    return typer.Option("--set", metavar="KEY=VALUE", help=words, show_default=False)


Control = Annotated[
    str,
    typer.Option(
        "--control",
        envvar="SYNCLINE_CONTROL",
        metavar="URL",
        help="The control plane's address, or several with commas between.",
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
MaybeJobFile = Annotated[
    str | None, typer.Argument(metavar="JOB.toml", help="The job's file.", show_default=False)
]
Overrides = Annotated[
    list[str] | None, _set("Change one setting of the job, such as optimizer.lr=1e-3.")
]
RunOverrides = Annotated[
    list[str] | None,
    _set("One setting: of the job, such as run.sync_every=128, or of the run without one."),
]
RestoreOverrides = Annotated[
    list[str] | None, _set("Change a setting of the run, such as run.outer.lr=0.5.")
]
ModelFolder = Annotated[
    str, typer.Option("--out", "-o", metavar="DIR", help="The folder to write the model to.")
]
TokenizerData = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="A prepared folder for its tokenizer, where the run's own data is not at hand.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a model that is in the folder.")
]
MaybeRunName = Annotated[
    str | None, typer.Argument(metavar="RUN", help="The run; all that are there without it.")
]


EXIT_CODES = "Exit codes: 0 done, 2 wrong usage, 130 Ctrl+C, others: syncline exit-codes"
"""What the help of every command ends with."""


def example(what: str, command: str) -> str:
    """The help of a command made by a function: what it does, and how it is used."""
    return f"{what}\n\n\b\nExample:\n  {command}"


def connect(control: str, token: str | None) -> OperatorClient:
    """Return a client; imports what it needs only now."""
    from syncline.launch.client import OperatorClient

    return OperatorClient(control, token)
