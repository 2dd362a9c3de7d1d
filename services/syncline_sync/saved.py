"""A fragment's memory <-> JSON, for the metadata of its files. Decides nothing.

Numbers that are not finite are written as JSON's usual extension (NaN, Infinity), so that the
norm of a push that was not finite is kept as it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, cast

from pydantic import TypeAdapter

from syncline_proto.codec import CODEC_BY_NAME
from syncline_sync.core.record import Saved
from syncline_sync.files import VERSION

_SAVED = TypeAdapter(Saved)


def saved_to_json(saved: Saved) -> str:
    return json.dumps({"version": VERSION, **asdict(saved)}, separators=(",", ":"))


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
