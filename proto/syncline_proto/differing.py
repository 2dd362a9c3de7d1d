"""In what settings of runs differ, for people."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, cast

from syncline_proto.settings import LIVE, RunSettings

FIXED = RunSettings.model_fields.keys() - LIVE
"""What is settled when a run is created, and stays."""


def in_words(
    has: RunSettings, asked: RunSettings, of: Container[str] = RunSettings.model_fields
) -> str:
    """All in which the run's settings differ from those asked for; "" where they are the same.

    What nobody may have asked for is called the default. ``of``: the settings, or groups of such,
    that are looked at.
    """
    new = asked.model_dump(mode="json")
    bare = RunSettings(strategy=asked.strategy).model_dump(mode="json")
    chosen = {key for key, _, _ in differences(bare, new)}
    return "; ".join(
        f"{key}: the run has {one}, here {other}{'' if key in chosen else ', the default'}"
        for key, one, other in differences(has.model_dump(mode="json"), new)
        if key.partition(".")[0] in of
    )


def changes(old: RunSettings, new: RunSettings) -> str:
    """What changes in a run's settings, as "key: old -> new, ..."; "" where nothing does."""
    found = differences(old.model_dump(mode="json"), new.model_dump(mode="json"))
    return ", ".join(f"{key}: {one} -> {other}" for key, one, other in found)


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (key, old, new) for each leaf in which two JSON values differ, sorted by key."""
    if isinstance(old, dict) and isinstance(new, dict):
        one, other = cast(dict[str, Any], old), cast(dict[str, Any], new)
        for key in sorted(one.keys() | other.keys()):
            below = f"{path}.{key}" if path else key
            yield from differences(one.get(key), other.get(key), below)
    elif old != new:
        yield path, _short(old), _short(new)


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
