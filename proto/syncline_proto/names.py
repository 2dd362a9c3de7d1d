"""Names of runs, replicas and services, and other short texts: which are valid, in words too.

A name is lower case, so that it is safe in a path, a URL and a Kubernetes object. Loads nothing,
so what a command line is to know at once stands here, too.
"""

from __future__ import annotations

import re

NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"

NAME_WORDS = "1 to 63 lower-case letters, digits and . _ -, with a letter or digit first and last"
"""The pattern, for people; what follows "must be"."""

MAYBE_NAME_PATTERN = f"^$|{NAME_PATTERN}"
"""A name, or none."""

LINE_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$"
"""A text without control characters."""

KIND_PATTERN = r"^[a-z0-9_-]+(\.[a-z0-9_-]+)*$"
"""Of an event."""

EVENTS_MAX = 5000
"""As many as the control plane gives at a time."""
AHEAD_S_MAX = 86_400.0
"""A clock may be this far ahead of the control plane's."""
ROUNDS_MAX = 2000
"""As many of a run as the control plane keeps, and gives at a time."""

RUN_DAMAGED = "run.damaged"
"""The kind of the event that says why a run is not served; the newest of a run is kept for good."""

IN_WORDS = {
    NAME_PATTERN: NAME_WORDS,
    MAYBE_NAME_PATTERN: NAME_WORDS,
    LINE_PATTERN: "one line without control characters",
    KIND_PATTERN: "words of lower-case letters, digits, _ and -, joined by dots",
}


CUT = "…"
"""In the place of what was cut off."""


def in_one_line(text: str, most: int) -> str:
    """``text`` without what no line, or no UTF-8, can hold.

    If it is longer than ``most`` characters, it is cut at the last end of a word, or within one
    that is longer than half of that, and ends in a mark of that.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) <= most:
        return line
    room = most - len(CUT)
    words, _, _ = line[: room + 1].rpartition(" ")
    return (words if len(words) >= room / 2 else line[:room]) + CUT


def valid_name(name: str) -> bool:
    """Whether this may be the name of a run or replica."""
    return re.fullmatch(NAME_PATTERN, name) is not None
