"""A picture that is no higher than its window: tables leave rows out before sums are cut off.

For what is drawn again and again in one place; what is printed once may scroll.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType

from syncline.cli.output import Fitting


class Window:
    """Parts below one another; the longest tables among them give way where there are too many."""

    def __init__(self, *parts: RenderableType) -> None:
        self._picture = Group(*parts)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        tables = list(_tables(self._picture))
        for table in tables:
            table.rows_max = None
        high = len(console.render_lines(self._picture, options, pad=False))
        rows_max = _rows_max([table.rows for table in tables], high - options.max_height)
        for table in tables:
            table.rows_max = rows_max
        yield self._picture


def _rows_max(rows: Sequence[int], too_many: int) -> int | None:
    """The most rows of a table with which there are ``too_many`` lines less; None where all fit."""
    if too_many <= 0:
        return None
    for most in range(max(rows, default=0) - 1, 0, -1):
        # The first row that is left out gives its line to the words that say so.
        if sum(max(0, count - most - 1) for count in rows) >= too_many:
            return most
    return 0


def _tables(picture: RenderableType) -> Iterator[Fitting]:
    if isinstance(picture, Fitting):
        yield picture
    elif isinstance(picture, Group):
        for part in picture.renderables:
            yield from _tables(part)
