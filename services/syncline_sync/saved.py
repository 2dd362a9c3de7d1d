"""A fragment's memory <-> JSON, for the metadata of its files. Decides nothing.

Numbers that are not finite are written as JSON's usual extension (NaN, Infinity), so that the
norm of a push that was not finite is kept as it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, cast

from syncline_sync.core.detector import Ema, ReplicaNorms, Statistics
from syncline_sync.core.record import Contribution, LastPush, Saved
from syncline_sync.files import VERSION


def saved_to_json(saved: Saved) -> str:
    return json.dumps({"version": VERSION, **asdict(saved)}, separators=(",", ":"))


def saved_from_json(text: str) -> Saved:
    """Read what ``saved_to_json`` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is not of this version.
    """
    raw = cast(dict[str, Any], json.loads(text))
    if raw.pop("version") != VERSION:
        raise ValueError("the stored state is of another version")
    norms = raw.pop("statistics")
    replicas = {
        name: ReplicaNorms(Ema(**row["ema"]), row["rounds"], tuple(row["excluded"]))
        for name, row in norms.pop("replicas").items()
    }
    statistics = Statistics(
        Ema(**norms.pop("pooled")), Ema(**norms.pop("norms")), **norms, replicas=replicas
    )
    last = {name: LastPush(**row) for name, row in raw.pop("last").items()}
    contributions = tuple(Contribution(**row) for row in raw.pop("contributions"))
    return Saved(**raw, statistics=statistics, last=last, contributions=contributions)
