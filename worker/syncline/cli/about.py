"""``syncline version`` and ``syncline exit-codes``."""

from __future__ import annotations

import typer

from syncline.cli import output
from syncline.cli.options import Json

PLAIN_CODES = {
    0: ("", "Done."),
    1: ("", "A fault of our own; from doctor: a check failed."),
    2: ("", "Wrong usage: an unknown command or option."),
    130: ("", "Ctrl+C; for up and demo also SIGTERM."),
}


def app_version(asked: bool) -> None:
    """Print what ``version`` prints first, and end; nothing where it was not asked for."""
    if asked:
        output.show(None, False, lambda: f"syncline {installed('syncline')}")
        raise typer.Exit


def version(as_json: Json = False) -> None:
    """Print the version, and those of what it stands on.

    \b
    Examples:
      syncline version
      syncline version --json
    """
    import platform

    found = {name: installed(name) for name in ("syncline", "torch", "transformers", "grpcio")}
    found["python"] = platform.python_version()
    output.show(found, as_json, lambda: output.facts(list(found.items())))


def exit_codes(as_json: Json = False) -> None:
    """Print every exit code and what it means.

    \b
    Examples:
      syncline exit-codes
      syncline exit-codes --json
    """
    found = exit_code_rows()
    rows = [(row["exit"], row["code"] or None, row["meaning"]) for row in found]
    columns = (">exit", "code", "meaning")
    output.show(found, as_json, lambda: output.table(columns, rows, empty="", fold="meaning"))


def exit_code_rows() -> list[dict[str, int | str]]:
    """Return the table of exit codes, generated from the tree of errors."""
    from syncline.data.errors import DataError
    from syncline_proto.errors import SynclineError, every_kind

    kinds = {
        kind.exit_code: kind for kind in (DataError, *every_kind()) if kind is not SynclineError
    }
    ours = {code: (kind.code, (kind.__doc__ or "").splitlines()[0]) for code, kind in kinds.items()}
    return [
        {"exit": code, "code": name, "meaning": meaning}
        for code, (name, meaning) in sorted((PLAIN_CODES | ours).items())
    ]


def installed(package: str) -> str | None:
    """Return a package's version without importing it; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
