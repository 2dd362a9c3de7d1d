"""What a fragment's files are, as values: a head's rows, whose they are, what is read of them.

Reads and writes nothing (``fragment_store``), but knows which arrays a file of each kind has, and
makes them anew as they lie in it, from where a commit takes them without a copy (``placed``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from syncline_proto.codec import Float32, UInt16
from syncline_proto.reports import RoundReport
from syncline_sync.core.record import Saved
from syncline_sync.files import Array, Tensor
from syncline_sync.memory import placed

_FILE = re.compile(r"[rgo][0-9]{8,20}(\.[0-9]+)?\.safetensors")
REVISION = re.compile(r"r([0-9]{8,18})(\.[0-9]+)?\.safetensors$")
"""The file of a revision, with its number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file that a head names."""

    file: str
    revision: int
    gradient_step: int
    bytes: int
    crc32c: int

    @property
    def alone(self) -> str | None:
        """What the file holds, where that is one array of fp32 that is no revision."""
        if self.file.startswith("o"):
            return "offer"
        return "gradient" if self.gradient_step else None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Entry:
        """Read a row of a head.

        Raises:
            ValueError, TypeError: it is none.
        """
        entry = cls(**row)
        numbers = (entry.revision, entry.gradient_step, entry.bytes, entry.crc32c)
        if not all(type(n) is int and n >= 0 for n in numbers) or not _FILE.fullmatch(entry.file):
            raise ValueError("a row of it names no file of ours")
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which fragment of which run a file is of; ``numel`` follows from the layout."""

    run: str
    fragment: int
    layout: str
    """The layout's fingerprint."""
    numel: int

    def metadata(self) -> dict[str, str]:
        """What every file of the fragment says of itself."""
        return {"run": self.run, "fragment": str(self.fragment), "layout": self.layout}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A fragment as the last commit left it; the arrays are nobody else's.

    ``revisions`` is what was saved beside each kept revision, oldest first, and ``gradients``
    beside each kept mean gradient. Arrays are those of the newest. ``gradient``, and ``offer``,
    which waits for the offers of other fragments, are only there in the synchronous phase.
    ``published`` is what is published of the newest revision, bf16 as bits, where ``parameters``
    do not tell it.
    """

    revisions: tuple[Saved, ...]
    parameters: Float32
    momentum: Float32
    published: UInt16 | None = None
    gradients: tuple[Saved, ...] = ()
    gradient: Float32 | None = None
    offer: tuple[Saved, Float32] | None = None
    reports: tuple[RoundReport, ...] = ()
    """Of rounds that may not have been heard of, the newest of them included."""

    @property
    def saved(self) -> Saved:
        """What was saved with the last round."""
        return (self.gradients or self.revisions)[-1]


def new_parameters(numel: int) -> Float32:
    """Zeros, fp32 [numel]: the first array of a revision's file."""
    return placed(numel, np.float32, 0)


def new_momentum(numel: int) -> Float32:
    """Zeros, fp32 [numel]: the array behind the parameters."""
    return placed(numel, np.float32, 4 * numel)


def new_published(numel: int) -> UInt16:
    """Zeros, bf16 as bits [numel]: the array behind these two, where there is one."""
    return placed(numel, np.uint16, 8 * numel)


def check_arrays(
    arrays: Mapping[str, Tensor | Array], saved: Saved, numel: int, alone: str | None = None
) -> None:
    """Check that a file holds the arrays that its kind has, of a fragment of ``numel`` elements.

    ``alone`` is the name of the only one, in a file that is no revision's.

    Raises:
        ValueError: it does not.
    """
    names = [alone] if alone else ["parameters", "momentum"]
    forms: dict[str, tuple[str, int]] = dict.fromkeys(names, ("float32", numel))
    if saved.is_by_difference and not alone:
        forms["published"] = ("uint16", numel)
    if {name: (values.dtype.name, values.size) for name, values in arrays.items()} != forms:
        raise ValueError(f"it does not hold {numel} elements, as the layout does")
