"""What a store keeps when its disk or the system refuses, in words for whoever is to mend it."""

from __future__ import annotations

import errno

from syncline_proto.descriptors import none_left
from syncline_proto.errors import StoreError

NOTHING_LOST = (
    "start the service again: nothing that was published is lost, or with durability async at most "
    "the newest revision of a fragment."
)


MORE_FILES = "Allow more open files (ulimit -n; the whole machine: fs.file-max)"
MORE_MEMORY = "Allow it more memory (ulimit -v; a container's limit)"


def remedy(error: OSError, otherwise: str) -> str:
    """How to mend what the system refuses; ``otherwise`` where it is not for want of something."""
    if none_left(error):
        return MORE_FILES
    return MORE_MEMORY if error.errno == errno.ENOMEM else otherwise


class StoreRefuses(StoreError):
    """The disk, or the way to it, refuses; the service that was at work there ends."""

    def __init__(self, what: str, mend: str) -> None:
        """``what`` has happened, in a sentence; how to ``mend`` it, as the begin of one."""
        super().__init__(f"{what} {mend}, then {NOTHING_LOST}")
        self.beside_runs = f"{what} {mend}, then try again: the runs here go on."


def beside_runs(error: StoreError) -> str:
    """The refusal of a save or a restore, after which the service goes on."""
    return error.beside_runs if isinstance(error, StoreRefuses) else error.message
