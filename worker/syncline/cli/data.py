"""``syncline data``: from text to token shards, a look at them, and how far a run is in its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from syncline.cli import output
from syncline.cli.options import DEFAULT_CONTROL, Control, Json, RunName, Token, connect

if TYPE_CHECKING:
    from rich.console import RenderableType

    from syncline.data.prepare import Summary
    from syncline_proto.leased import DataView

app = typer.Typer(
    no_args_is_help=True,
    help="""Turn text into token shards, and see how far a run has come.

    \b
    Examples:
      syncline data prepare builtin --out data/python
      syncline data inspect data/python
      syncline data status my-run
    """,
)


@app.command("prepare")
def prepare_data(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Text, JSON lines or Parquet files, folders or globs of them; "
            "builtin (Python's own source); hf:OWNER/NAME for a Hugging Face dataset.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="The new folder.")],
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="byte, bpe:VOCAB to train one, or a tokenizer.json or its folder."
        ),
    ] = "byte",
    held_out: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0.0, max=0.99, help="Share of the documents for evaluation."
        ),
    ] = 0.05,
    text_field: Annotated[
        str, typer.Option(metavar="NAME", help="The text's field in JSON lines and Parquet.")
    ] = "text",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace prepared data of an earlier time.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tokenize sources into a new folder of token shards.

    The shards are memory-mapped, and split into train and held-out.

    \b
    Examples:
      syncline data prepare builtin --out data/python
      syncline data prepare books/ notes.jsonl --out data/books --tokenizer bpe:8192
    """
    from syncline.data.prepare import prepare

    made = prepare(
        sources,
        out,
        tokenizer,
        held_out,
        text_field=text_field,
        overwrite=overwrite,
        progress=not as_json,
    )
    output.show(made.as_dict(), as_json, lambda: _picture(made))


@app.command("inspect")
def inspect_data(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A prepared folder.")],
    as_json: Json = False,
) -> None:
    """Check every byte of a prepared folder and say what it holds.

    \b
    Example:
      syncline data inspect data/python
    """
    from syncline.data.prepare import inspect

    found = inspect(folder, progress=not as_json)
    output.show(found.as_dict(), as_json, lambda: _picture(found))


@app.command("status")
def show_status(
    run: RunName,
    every: Annotated[
        bool, typer.Option("--all", help="A line for each epoch that the control plane tells of.")
    ] = False,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show how far a run has come in its data.

    What is done from epoch 0 on is one line. --json has the newest 100 epochs, and says how many
    older ones it leaves out.

    Trained: a push of it counted. Excluded: all pushes of it were judged anomalous. Leased: a
    replica reads it, or has read it and its push is under way; once the run has ended: it was read,
    and no round has it. Free: it waits for a replica.

    \b
    Examples:
      syncline data status my-run
      syncline data status my-run --all
      syncline data status my-run --json
    """
    with connect(control, token) as client:
        found = client.data(run)
    output.show(found, as_json, lambda: _coverage(found, every))


NOTHING = "Nothing was given out yet."

BAR = 24
"""Characters of an epoch's bar."""


def _coverage(found: DataView, every: bool) -> RenderableType:
    from rich.console import Group

    if found.dataset is None:
        return (
            "Nobody has asked for leased data in this run: its replicas have not begun to read, or "
            "their data is streamed, dealt, or each one's own."
        )
    size = found.dataset.sequences
    listed = [one for one in found.epochs if every or one.epoch >= found.epoch]
    first = min(found.epoch, found.epochs_left_out) if every else found.epoch
    columns = ("epoch", "", ">done", ">trained", ">excluded", ">leased", ">free")
    rows = (
        (
            one.epoch,
            _bar((one.trained + one.excluded) / size, one.leased / size),
            output.share((one.trained + one.excluded) / size),
            *(f"{number:,}" for number in (one.trained, one.excluded, one.leased, one.free)),
        )
        for one in listed
    )
    holders = ((one.replica, f"{one.sequences:,}") for one in found.holders)
    facts = output.facts(
        [
            ("dataset", f"{size:,} sequences, seed {found.dataset.seed}"),
            ("trained", f"{found.trained:,} sequences, over all epochs"),
            *_not_listed(found, first),
        ]
    )
    return Group(
        facts,
        "",
        output.table(
            columns,
            rows,
            empty="Of no other epoch was anything given out yet." if first else NOTHING,
        ),
        "",
        output.table(("replica", ">leased"), holders, empty="No replica holds any."),
    )


def _not_listed(found: DataView, first: int) -> Iterator[tuple[str, str]]:
    """What has no line: epochs before ``first``, and those that the control plane leaves out."""
    if found.excluded:
        yield "excluded", f"{found.excluded:,} sequences, over all epochs"
    for name, start, stop in ("done", 0, first), ("not listed", first, found.epochs_left_out):
        if start + 1 == stop:
            yield name, f"epoch {start:,}"
        elif start < stop:
            yield name, f"epochs {start:,} to {stop - 1:,}"


def _bar(done: float, leased: float) -> str:
    full = int(done * BAR)
    half = min(BAR - full, round(leased * BAR))
    return "█" * full + "▒" * half + "░" * (BAR - full - half)


def _picture(summary: Summary) -> RenderableType:
    from rich.console import Group

    columns = ("split", ">documents", ">bytes", ">tokens", ">shards", ">bytes/token")
    rows = (
        (
            split.name,
            f"{split.documents:,}",
            output.count(split.bytes),
            output.count(split.tokens),
            split.shards,
            output.decimals(split.bytes_per_token, 2),
        )
        for split in summary.splits
    )
    facts = output.facts(
        [
            ("folder", summary.folder),
            ("tokenizer", f"{summary.tokenizer}, {summary.vocab_size:,} tokens, {summary.dtype}"),
            ("fingerprint", summary.fingerprint),
            ("took", output.duration(summary.seconds)),
        ]
    )
    return Group(facts, "", output.table(columns, rows, empty="It is empty."))
