"""The threads that wait for the disk, and a look whether the store is where it was.

A folder that is moved, removed or unmounted while we run is never made anew. What is written where
it was is found by nobody: when it comes back, the run stands at an older revision than replicas
have seen, and says nothing of that. So all that is done at the disk begins and ends with a look,
but for what pulls read and what is only looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from syncline_proto.locks import is_still
from syncline_sync.durability import StoreRefuses
from syncline_sync.pool import P, T, compute

DISK_THREADS = 4
"""Fragments and runs that are written, or read whole, at a time; others wait for their turn."""

STOP_S = 20.0
"""How long the end waits for what is under way at the disk.

With the doors and the last reports it stays within the 30 s after which Kubernetes would kill us.
"""

ENDING = "The sync service is ending; ask again once it is back."
"""What is told meanwhile to who asks for something that takes long."""

READERS = 4
"""Chunks of older revisions that are read for pulls at a time."""


class DiskHangs(StoreRefuses):
    """The disk has neither done nor refused what it was asked; the thread that waits never ends."""

    def __init__(self, root: Path, within_s: float) -> None:
        super().__init__(f"The disk of {root} has not answered for {within_s:g} s.", "Mend it")


class Disk:
    """What is done at it is done in threads of its own, and counts only if the store is there."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(DISK_THREADS, "disk")
        self._brief = ThreadPoolExecutor(1, "disk-brief")
        """What is short does not stand in line behind fragments, nor behind readers."""
        self.readers = ThreadPoolExecutor(READERS, "disk-readers")
        """For what pulls read of files: that holds up no commit."""
        self._lookups = ThreadPoolExecutor(1, "disk-lookups")
        """Nor does a large file, which is read whole before a pull, hold up who looks for a run."""
        self._look: Callable[[], None] = lambda: None

    def watch(self, look: Callable[[], None]) -> None:
        """From now on ``look`` says, by what it raises, that the store is gone."""
        self._look = look

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work``, and return its result if the store is still there.

        Raises:
            StoreError: it is not, whatever the work has met.
        """
        return await compute(self._threads, self._looked_after, lambda: work(*args, **kwargs))

    async def do_briefly(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``do``, what is short."""
        return await compute(self._brief, self._looked_after, lambda: work(*args, **kwargs))

    async def find(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what only looks something up, and return its result; nothing hangs on that."""
        return await compute(self._lookups, work, *args, **kwargs)

    @property
    def pools(self) -> tuple[ThreadPoolExecutor, ...]:
        """Whoever ends the process ends these."""
        return self._threads, self._brief, self.readers, self._lookups

    def _looked_after(self, work: Callable[[], T]) -> T:
        self._look()  # what lies there may be another's: an older copy, say
        try:
            return work()
        finally:
            self._look()


def check_is_there(folder: Path, lock: IO[bytes]) -> None:
    """See that the ``lock`` that we hold in a folder is the one that lies there.

    Raises:
        StoreRefuses: it is not; the folder was moved, removed or unmounted.
    """
    path = Path(lock.name)
    try:
        if is_still(path, lock):
            return
        why = f"{path} is not the file that this service locked"
    except OSError as error:
        why = f"{path}: {error.strerror}"
    raise StoreRefuses(
        f"The store's folder {folder} was moved, removed or unmounted ({why}).", "Bring it back"
    )
