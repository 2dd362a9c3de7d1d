"""Names of runs, replicas and services: which are valid, as a pattern and in words.

Lower case, so that a name is safe in a path, a URL and a Kubernetes object. Loads nothing.
"""

from __future__ import annotations

import re

NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"

NAME_WORDS = "1 to 63 lower-case letters, digits and . _ -, with a letter or digit first and last"
"""The pattern, for people; what follows "must be"."""


def valid_name(name: str) -> bool:
    """Whether this may be the name of a run or replica."""
    return re.fullmatch(NAME_PATTERN, name) is not None
