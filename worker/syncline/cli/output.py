"""The one way to print: tables for people, JSON for programs, errors as one sentence.

Results go to standard output, everything else to standard error. The only module, with the live
screen, that may print. It loads rich only when there is something to draw.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from syncline.faults import IN_SHELLS, told
from syncline_proto.errors import SynclineError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

PIPE_WIDTH = 200
"""Columns where nobody's window says how many there are: enough to cut nothing short."""

GAP = 2
"""Cells between two columns of a table."""


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
        return
    made = render()
    # A sentence is printed as it is, on one line; names from outside are never read as markup.
    console().print(made, markup=False, soft_wrap=isinstance(made, str))


def show_line(value: Any) -> None:
    """Print one JSON value on one line, at once: for what goes on and on."""
    sys.stdout.write(json.dumps(plain(value)) + "\n")
    sys.stdout.flush()


def note(sentence: str) -> None:
    """Tell a person something beside the result."""
    console(stderr=True).print(sentence, markup=False, soft_wrap=True)


def busy(doing: str, *, stderr: bool = False) -> AbstractContextManager[object]:
    """Inside, a terminal shows that something goes on, and what; a log is left alone."""
    screen = console(stderr=stderr)
    return screen.status(doing) if screen.is_terminal else nullcontext()


def error(problem: SynclineError) -> int:
    """Print an error as its sentence and return the exit code."""
    screen = console(stderr=True)
    screen.print("error: ", style="bold red", end="")
    screen.print(told(problem, IN_SHELLS), markup=False, soft_wrap=True)
    return problem.exit_code


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    spare: Sequence[str] = (),
    fold: str = "",
) -> RenderableType:
    """Return a table. A column whose name begins with ``>`` is aligned to the right.

    Nothing is cut: where the window is too narrow, headings take a line for each word, then the
    columns named in ``spare`` are left out, the first of them first, and a line says which. Only
    the column named ``fold`` may take several lines.
    """
    from rich.text import Text

    cells = [[_cell(cell) for cell in row] for row in rows]
    if not cells:
        return Text(empty, style="dim")
    return Fitting(columns, cells, spare, fold)


class Fitting:
    """A table that knows its columns' widths only when it is drawn."""

    rows_max: int | None = None
    """Leave out the rows after so many, and say so in the next one's place; None: none."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Text]],
        spare: Sequence[str],
        fold: str,
    ) -> None:
        self._names = [column.lstrip(">") for column in columns]
        self._right = [column.startswith(">") for column in columns]
        self._rows = rows
        self._spare, self._fold = spare, fold

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        kept = self._kept(options.max_width)
        stacked = not self._fits(kept, options.max_width, stacked=False)
        made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, GAP, 0, 0))
        high = max(len(self._heading(column, stacked)) for column in kept)
        for column in kept:
            folds = self._names[column] == self._fold
            words = self._heading(column, stacked)
            made.add_column(
                "\n" * (high - len(words)) + "\n".join(words),  # headings stand on their columns
                justify="right" if self._right[column] else "left",
                no_wrap=not folds,
                overflow="fold",
                min_width=None if folds else self._width(column, stacked),
            )
        more = 0 if self.rows_max is None else self.rows - self.rows_max
        for row in self._rows[: self.rows_max if more > 1 else None]:
            made.add_row(*(row[column] for column in kept))
        yield Trimmed(made)
        if more > 1:
            yield Text(f"{more} more; a higher window or --json shows all.", style="dim")
        if left_out := [self._names[c] for c in range(len(self._names)) if c not in kept]:
            names = ", ".join(left_out)
            yield Text(f"Not shown: {names}. A wider window or --json shows all.", style="dim")

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._rows)

    def _kept(self, width: int) -> list[int]:
        """The columns that fit into ``width`` beside one another."""
        kept = list(range(len(self._names)))
        for name in self._spare:
            if self._fits(kept, width, stacked=True):
                break
            kept.remove(self._names.index(name))
        return kept

    def _fits(self, columns: Sequence[int], width: int, *, stacked: bool) -> bool:
        taken = sum(self._width(column, stacked) for column in columns)
        return taken + GAP * (len(columns) - 1) <= width

    def _heading(self, column: int, stacked: bool) -> list[str]:
        """The lines of a column's heading."""
        name = self._names[column]
        return name.split() if stacked and name != self._fold else [name]

    def _width(self, column: int, stacked: bool) -> int:
        """Cells that a column takes at least."""
        from rich.cells import cell_len

        folds = self._names[column] == self._fold
        widths = [] if folds else [row[column].cell_len for row in self._rows]
        return max(*map(cell_len, self._heading(column, stacked)), *widths, 0)


class Trimmed:
    """What is drawn, without the blanks at the ends of its lines.

    With these rich fills the last column, and they wrap in narrower windows.
    """

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType | Segment]:
        from rich.segment import Segment

        for line in console.render_lines(self._drawn, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                yield from line[:-1]
                yield Segment(line[-1].text.rstrip(), line[-1].style)
            yield Segment.line()


def facts(pairs: Iterable[tuple[str, object]]) -> RenderableType:
    """Return names and values, one pair a line."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, _cell(value))
    return Trimmed(made)


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


def counted(number: int, thing: str) -> str:
    """Return how many there are: 1 run, 2 runs."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def count(number: float | None) -> str:
    """Return a count with three digits and a unit: 12.3 M."""
    if number is None:
        return "–"
    rounded = float(f"{number:.3g}")
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(rounded) >= size:
            return f"{rounded / size:.3g} {unit}" if rounded < 1000 * size else f"{rounded:.3g}"
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


def day(at: float) -> str:
    """Return a day and a time of it in the reader's own time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def clock(at: float) -> str:
    """Return a wall-clock time in the reader's own time zone."""
    return time.strftime("%H:%M:%S", time.localtime(at))
