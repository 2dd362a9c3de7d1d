"""A fragment's memory <-> JSON, for the metadata of its files; reports of rounds go along.

Decides nothing.

Numbers that are not finite are written as JSON's usual extension (NaN, Infinity), so that the
norm of a push that was not finite is kept as it was.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from syncline_proto.codec import CODEC_BY_NAME
from syncline_proto.reports import RoundReport
from syncline_sync.core.record import Saved
from syncline_sync.files import VERSION

_SAVED = TypeAdapter(Saved)
_REPORTS = TypeAdapter(list[RoundReport])


def saved_to_json(saved: Saved, reports: Sequence[str] = ()) -> str:
    """``reports`` are JSON already."""
    memory = json.dumps({"version": VERSION, **asdict(saved)}, separators=(",", ":"))
    return f'{memory[:-1]},"reports":[{",".join(reports)}]}}'


def saved_from_json(text: str) -> Saved:
    """Read what ``saved_to_json`` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is not of this version.
    """
    if cast(dict[str, Any], json.loads(text))["version"] != VERSION:
        raise ValueError("the stored state is of another version")
    saved = _SAVED.validate_json(text, strict=True)
    if saved.down not in CODEC_BY_NAME:
        raise ValueError(f"there is no codec {saved.down[:80]!r}")
    return saved


def reports_from_json(text: str) -> tuple[RoundReport, ...]:
    """Read the reports that ``saved_to_json`` wrote: none, where they are of another version."""
    reports = cast(dict[str, Any], json.loads(text)).get("reports", [])
    with contextlib.suppress(ValidationError):  # they are not worth a run
        return tuple(_REPORTS.validate_python(reports))
    return ()
