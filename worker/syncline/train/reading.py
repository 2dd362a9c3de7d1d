"""From a TOML file and ``key=value`` overrides to plain values.

Knows nothing of what the settings mean.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from syncline_proto.errors import ConfigError, FileMissing

NOTHING = frozenset({"none", "null"})
"""How an override says None, for which TOML has no word."""


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables.

    Raises:
        FileMissing: it cannot be read.
        ConfigError: it is not TOML; the message has the line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileMissing(
            f"cannot read the job {path}: {error.strerror}; give the path of a TOML file."
        ) from None
    except ValueError as error:  # TOML and UTF-8 faults alike
        raise ConfigError(f"{path} is not a TOML file: {error}.") from None


def apply_overrides(
    values: dict[str, Any],
    overrides: list[str],
    *,
    flag: str = "--set ",
    form: str = "section.key=value",
) -> dict[str, Any]:
    """Set ``a.b=value`` for each override; values are TOML, or else text.

    ``flag`` stands before an override where it was typed, and ``form`` is how one is written.

    Raises:
        ConfigError: an override is not written so.
    """
    for override in overrides:
        _, equals, text = override.partition("=")
        names = _names(override)
        if not equals or not all(names):
            raise ConfigError(f"{flag}{override}: write it as {form}.")
        table = values
        for name in names[:-1]:
            below = table.setdefault(name, {})
            if not isinstance(below, dict):
                raise ConfigError(f"{flag}{override}: {name} is a value, not a section.")
            table = cast(dict[str, Any], below)
        table[names[-1]] = _value(text.strip())
    return values


def is_overridden(
    key: Sequence[str | int], overrides: Sequence[str], *, is_unknown: bool = False
) -> bool:
    """Whether an override set this key, or a table that it is in.

    ``is_unknown``: there is no such key, so whoever set something in it made it, too.
    """
    names = [str(part) for part in key]
    set_here = list(map(_names, overrides))
    return any(
        names[: len(given)] == given or (is_unknown and given[: len(names)] == names)
        for given in set_here
    )


def _names(override: str) -> list[str]:
    """The parts of the key that is left of the equals sign."""
    return [name.strip() for name in override.partition("=")[0].split(".")]


def _value(text: str) -> Any:
    if text in NOTHING:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
