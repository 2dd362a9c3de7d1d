"""What the storm tells its replicas, and the words in which they tell how a push has ended."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import get_args

from syncline_proto.layout import Layout
from syncline_proto.settings import CodecName, RunSettings

RUN = "chaos"


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a replica has of a fragment; before it has anything, of revision -1."""

    revision: int = -1
    epoch: int = 1
    checksum: int = 0
    instance: str = ""
    """Of the service process that has sent it."""
    value: str = ""
    """Its name, for a pull by difference."""
    payload: bytes = b""
    """In bf16."""


class End(Enum):
    """What became of a push."""

    COMMITTED = "it is in a revision"
    LATE = "it is to be in a revision, and its replica goes on without that"
    STALE = "it is in none, and will not be"
    FENCED = "its replica's life has ended"


@dataclass(slots=True)
class Plan:
    """What all replicas do alike."""

    seed: int
    settings: RunSettings
    layout: Layout
    stall: float
    """How likely a replica sleeps beyond a round's deadline before a push."""
    rebirth: float
    """How likely it registers anew before a push, whatever its other fragments are at."""
    codecs: tuple[CodecName, ...] = get_args(CodecName)
    """Each push of progress has one of these; what it loses goes into the next one."""
    slow: str = ""
    """Who often sleeps through a round or two: it comes late where others do not wait for it."""
    turns: tuple[AbstractAsyncContextManager[object], ...] = ()
    """One for each fragment, in which a push is sent and its result is read."""
    until: list[int] | None = None
    """The revision at which each fragment stops; None while the storm goes on."""

    def __post_init__(self) -> None:
        """Where every push makes a revision, one at a time: else some go before they are read."""
        alone = self.settings.asynchronous
        fragments = self.layout.fragments
        self.turns = tuple(asyncio.Lock() if alone else contextlib.nullcontext() for _ in fragments)

    @property
    def keeps_accounts(self) -> bool:
        """Whether a push is in the revision that its result is, and on the disk, or in none."""
        settings = self.settings
        return settings.durability == "commit" and not (settings.quorum or settings.asynchronous)

    @property
    def rounds(self) -> int:
        """How many revisions a round of all replicas comes to."""
        return self.settings.window or 1

    def is_over(self, fragment: int, revision: int) -> bool:
        return self.until is not None and revision >= self.until[fragment]
