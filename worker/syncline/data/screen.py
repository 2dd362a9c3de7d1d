"""The progress bar of long reads: bytes, speed, time left, and one free column of words.

It goes to standard error, so that what a program prints for others to parse stays clean.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Meter:
    """One line of progress."""

    def __init__(self, progress: Progress, title: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total, words="")

    def advance(self, read_bytes: int) -> None:
        """Count bytes that were read."""
        self._progress.advance(self._task, read_bytes)

    def expect(self, total: int) -> None:
        """Say how many bytes there are in all, as soon as that is known."""
        self._progress.update(self._task, total=total)

    def reach(self, read_bytes: int) -> None:
        """Stand at so many bytes."""
        self._progress.update(self._task, completed=read_bytes)

    def say(self, words: str) -> None:
        """Replace the free column."""
        self._progress.update(self._task, words=words)

    def done(self) -> None:
        """Fill the bar: sizes that were guessed are now known."""
        task = self._progress.tasks[self._progress.task_ids.index(self._task)]
        self._progress.update(self._task, total=task.completed)


@contextmanager
def meter(title: str, total: int | None, *, shown: bool) -> Iterator[Meter]:
    """Show a line of progress while the block runs; show nothing where ``shown`` is false."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        one = Meter(progress, title, total)
        yield one
        one.done()
