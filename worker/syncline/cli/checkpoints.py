"""``syncline checkpoints``: keep a run elsewhere, see what is kept, and begin from it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncline.cli import output
from syncline.cli.options import (
    DEFAULT_CONTROL,
    Control,
    Json,
    ModelFolder,
    Overwrite,
    RestoreOverrides,
    RunName,
    Token,
    TokenizerData,
    connect,
)
from syncline_proto.errors import CheckpointDamaged, ConfigError, InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from syncline.launch.kept import Kept
    from syncline_proto.rest import RunView

app = typer.Typer(
    no_args_is_help=True,
    help="""Keep a run elsewhere, and begin a new one from it.

    \b
    Examples:
      syncline checkpoints save my-run s3://bucket/my-run
      syncline checkpoints ls s3://bucket/my-run
      syncline checkpoints restore s3://bucket/my-run/my-run-r120 --run second
    """,
)

STILL_S = 30.0
"""Where no byte has moved for so long the command says so."""

Place = Annotated[
    str, typer.Argument(metavar="URL", help="A directory, or s3://BUCKET/FOLDER and the like.")
]
Address = Annotated[
    str, typer.Argument(metavar="URL/NAME", help="A checkpoint: its place, and its name.")
]


@app.command("save")
def save_checkpoint(
    run: RunName,
    url: Place,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its name. [default: RUN-rREVISION]", show_default=False),
    ] = None,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Copy the newest revision of a run; the run goes on meanwhile.

    The sync services copy, with their own credentials; a directory must be one that each sees.

    \b
    Examples:
      syncline checkpoints save my-run /backups
      syncline checkpoints save my-run s3://bucket/my-run --name before-the-change
    """
    from syncline.launch.checkpoints import copiers, failure_told, save
    from syncline.settings import checked_name

    place = _place(url)
    if name is not None:
        checked_name("checkpoint", name)
    with connect(control, token) as client:
        view = client.run(run)
        with (
            failure_told(client, run),
            copiers(client, token) as services,
            _moving(f"Saving {run}", as_json) as told,
        ):
            where, made = save(view, services, place, name, told)
    done = {
        "checkpoint": where,
        "run": run,
        "revision": made.revision,
        "committed_tokens": made.committed_tokens,
        "bytes": made.bytes,
    }
    output.show(
        done,
        as_json,
        lambda: (
            f"Revision {made.revision} of {run}, {output.count(made.bytes)}B after "
            f"{output.count(made.committed_tokens)} tokens, is kept as {where}."
        ),
    )


@app.command("ls")
def list_checkpoints(
    url: Place,
    check: Annotated[
        bool, typer.Option("--check", help="Read every byte, and compare checksums.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the checkpoints in a place, and whether each is whole.

    The newest is the last. They are read from here: neither the control plane nor a sync service
    is asked. Where one is damaged the exit code is 43, and 42 where there is no such place or it is
    a checkpoint itself.

    \b
    Examples:
      syncline checkpoints ls /backups
      syncline checkpoints ls s3://bucket/my-run --check --json
    """
    from syncline.launch.kept import listed

    with _moving("Reading", as_json or not check) as told:
        read = 0

        def moved(count: int) -> None:
            nonlocal read
            read += count
            told(read, 0)

        place = _place(url)
        found = listed(place, check=check, moved=moved)
    output.show([asdict(one) for one in found], as_json, lambda: kept_table(found, place))
    if damaged := sum(one.damage is not None for one in found):
        kept = output.counted(len(found), "checkpoint")
        raise CheckpointDamaged(
            f"{damaged} of {kept} in {place} {'is' if damaged == 1 else 'are'} damaged."
        )


@app.command("restore")
def restore_checkpoint(
    address: Address,
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="The new run's name.")],
    changes: RestoreOverrides = None,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Begin a new run from a checkpoint, with its settings.

    Replicas join it as they join any other.
    The sync services fetch it first, with their own credentials; if one of them cannot, or a file
    is damaged, there is no run.

    \b
    Examples:
      syncline checkpoints restore /backups/my-run-r120 --run second
      syncline checkpoints restore s3://bucket/my-run/my-run-r120 --run longer \\
        --set run.token_budget=2000000000
    """
    from syncline.cli.creating import values_of
    from syncline.launch.checkpoints import copiers, restore
    from syncline.settings import checked_name

    patch = values_of(changes or [])
    name = checked_name("run", run)
    where = _checkpoint(address)
    with (
        connect(control, token) as client,
        copiers(client, token) as services,
        _moving(f"Fetching {where}", as_json) as told,
    ):
        view = restore(client, services, where, name, patch, told)
    output.show(view, as_json, lambda: begins(view))


@app.command("export")
def export_checkpoint(
    address: Address,
    out: ModelFolder,
    data: TokenizerData = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a checkpoint's model for transformers.

    No service is needed: it is read from here. Of a run of your own training loop, whose model
    nobody else knows, it writes the parameters for torch.

    \b
    Examples:
      syncline checkpoints export /backups/my-run-r120 --out model
      syncline checkpoints export s3://bucket/my-run/my-run-r120 --out model --json
    """
    from syncline.cli.train import check_out, keep_quiet, show_exported, teller
    from syncline.launch.kept import opened

    where = _checkpoint(address)
    check_out(out, overwrite=overwrite)
    opened(where)  # before what takes seconds to load
    keep_quiet()
    say = teller(as_json)
    say("Loading PyTorch and transformers ...")
    from syncline.train.export_kept import export_kept

    made = export_kept(where, out, data=data, overwrite=overwrite, say=say)
    show_exported(made, as_json)


def kept_table(found: Sequence[Kept], url: str) -> RenderableType:
    """Return one line for each checkpoint, and what is wrong with the damaged ones."""
    from rich.console import Group

    rows = (
        (
            one.name,
            one.run,
            one.revision,
            None if one.committed_tokens is None else output.count(one.committed_tokens),
            None if one.bytes is None else f"{output.count(one.bytes)}B",
            None if one.created_at is None else output.day(one.created_at),
            "damaged" if one.damage else "whole",
        )
        for one in found
    )
    made = output.table(
        ("name", "run", ">revision", ">tokens", ">size", "taken", "state"),
        rows,
        empty=f"There are no checkpoints in {url}.",
        spare=("taken", "tokens", "run"),
    )
    return Group(made, *(one.damage for one in found if one.damage))


def begins(view: RunView) -> str:
    """Say where a restored run stands, and what becomes of it."""
    tokens, budget = view.committed_tokens, view.settings.token_budget
    stands = f"The run {view.name} begins at revision {view.revision}, after"
    if budget is None or tokens < budget:
        return f"{stands} {output.count(tokens)} tokens; replicas may join it."
    return (
        f"{stands} {output.count(tokens)} tokens, which is its whole token budget ({budget:,}), so "
        "it ends when the first replica joins; to train on, restore it under another name with "
        "--set run.token_budget=MORE."
    )


def _place(text: str) -> str:
    """A URL as it is; a directory as an absolute path, which means the same to every program.

    Raises:
        ConfigError: it is no place for checkpoints.
    """
    from syncline_proto.depot import check_url

    if not text.strip():
        raise ConfigError("URL is empty; name a directory, or s3://BUCKET/FOLDER and the like.")
    place = text if "://" in text else os.path.realpath(Path(text).expanduser())
    try:
        check_url(place)
    except InvalidRequest as error:  # whoever typed it reads it
        raise ConfigError(error.message) from None
    return place


def _checkpoint(text: str) -> str:
    """The place of a checkpoint, whose last part is its name.

    Raises:
        ConfigError: it is none.
    """
    from syncline_proto.names import NAME_WORDS, valid_name

    place = _place(text).rstrip("/")
    if not valid_name(place.rpartition("/")[2]):
        raise ConfigError(f"The last part of {text}, a checkpoint's name, must be {NAME_WORDS}.")
    return place


@contextmanager
def _moving(title: str, is_quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a terminal a line of progress; it yields who is told (bytes so far, all bytes or 0)."""
    from syncline.data.screen import meter

    shown = not is_quiet and output.console(stderr=True).is_terminal
    with meter(title, None, shown=shown) as line:
        moved, since_s = -1, time.monotonic()

        def told(done: int, total: int) -> None:
            nonlocal moved, since_s
            if total:
                line.expect(total)
            line.reach(done)
            if done != moved:
                moved, since_s = done, time.monotonic()
            elif not is_quiet and time.monotonic() - since_s >= STILL_S:
                since_s = math.inf  # once, until something moves
                output.note(f"Nothing has moved for {STILL_S:g} s: does the store answer?")

        yield told
