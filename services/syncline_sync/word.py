"""What an operator says of a damaged run: which it is, and up to which revision it may lose.

Knows nothing of files; loads nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from syncline_proto.names import NAME_WORDS, valid_name


class Word(NamedTuple):
    """``RUN@REVISION``: damaged files of these revisions give way to what is before them."""

    run: str
    up_to: int
    """The newest that may be given up."""

    @classmethod
    def of(cls, said: str) -> Self:
        """Read it.

        Raises:
            ValueError: it is none; what one looks like.
        """
        run, _, number = said.rpartition("@")
        if not valid_name(run) or not re.fullmatch(r"[0-9]{1,18}", number):
            raise ValueError(
                f"it is RUN@REVISION, such as my-run@7, as the refusal of the damaged run says (a "
                f"run is {NAME_WORDS})"
            )
        return cls(run, int(number))

    def __str__(self) -> str:
        return f"{self.run}@{self.up_to}"
