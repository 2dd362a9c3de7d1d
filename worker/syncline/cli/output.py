"""The one way to print: tables for people, JSON for programs, errors as one sentence.

Results go to standard output, everything else to standard error. The only room, with the live
screen, that may print. It loads rich only when there is something to draw.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from syncline_proto.errors import SynclineError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 200
"""Columns where nobody's window says how many there are: enough to cut nothing short."""


@cache
def console(*, stderr: bool = False) -> Console:
    """Return the console of standard output, or of standard error."""
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, width=None if file.isatty() else PIPE_WIDTH, highlight=False, emoji=False
    )


def show(value: Any, as_json: bool, render: Callable[[], RenderableType]) -> None:
    """Print a result: ``value`` as JSON, or what ``render`` makes of it for people."""
    if as_json:
        sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")
    else:
        console().print(render())


def show_line(value: Any) -> None:
    """Print one JSON value on one line, at once: for what goes on and on."""
    sys.stdout.write(json.dumps(plain(value)) + "\n")
    sys.stdout.flush()


def note(sentence: str) -> None:
    """Tell a person something beside the result."""
    console(stderr=True).print(sentence, markup=False, soft_wrap=True)


def error(problem: SynclineError) -> int:
    """Print an error as its sentence and return the exit code."""
    screen = console(stderr=True)
    screen.print("error: ", style="bold red", end="")
    screen.print(problem.message, markup=False, soft_wrap=True)
    return problem.exit_code


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str
) -> RenderableType:
    """Return a table. A column whose name begins with ``>`` is aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(_cell(cell) for cell in row))
    return made if made.row_count else Text(empty, style="dim")


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Return names and values, one pair a line."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, _cell(value))
    return made


def _cell(value: object) -> Text:
    """Return a value as it is: names from outside are never read as markup."""
    from rich.text import Text

    return value if isinstance(value, Text) else Text("–" if value is None else str(value))


def plain(value: Any) -> Any:
    """Return the JSON form of models, and of lists and dictionaries of them."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def count(number: float | None) -> str:
    """Return a count with three digits and a unit: 12.3 M."""
    if number is None:
        return "–"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}" if number < 1000 * size else f"{number:.3g}"
    return f"{number:.0f}"


def decimals(number: float | None, digits: int = 3) -> str:
    return "–" if number is None else f"{number:.{digits}f}"


def share(part: float | None) -> str:
    """Return a share of one in per cent."""
    return "–" if part is None else f"{100 * part:.1f} %"


def duration(seconds: float | None) -> str:
    """Return a time span: 42 s, 3:05, 2:03:05."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def clock(at: float) -> str:
    """Return a wall-clock time in the reader's own time zone."""
    return time.strftime("%H:%M:%S", time.localtime(at))
