"""A fragment's memory <-> JSON, for the metadata of its files; reports of rounds go along.

Decides nothing.

Numbers that are not finite are written as JSON's usual extension (NaN, Infinity), so that the
norm of a push that was not finite is kept as it was.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from syncline_proto.codec import CODEC_BY_NAME
from syncline_proto.reports import RoundReport
from syncline_proto.stretches import are_apart
from syncline_sync.core.detector import NORM_LIMIT, Ema
from syncline_sync.core.record import Saved
from syncline_sync.files import VERSION

COUNT_MAX = 1 << 62
"""Of what is counted: as much again still fits 64 bits."""

NORM_MAX = 2 * NORM_LIMIT
"""Of a norm that was weighed, and of means of such: rounding may lead beyond the limit itself."""

_SAVED = TypeAdapter(Saved)
_REPORTS = TypeAdapter(list[RoundReport])


def saved_to_json(saved: Saved, reports: Sequence[str] = ()) -> str:
    """``reports`` are JSON already."""
    memory = json.dumps({"version": VERSION, **_SAVED.dump_python(saved)}, separators=(",", ":"))
    return f'{memory[:-1]},"reports":[{",".join(reports)}]}}'


def saved_from_json(text: str) -> Saved:
    """Read what ``saved_to_json`` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is not of this version.
    """
    kept = cast(dict[str, Any], json.loads(text))
    if kept["version"] != VERSION:
        raise ValueError("the stored state is of another version")
    kept.pop("reports", None)
    if not all(0 <= count <= COUNT_MAX for count in _counts(kept)):
        raise ValueError("what it remembers has a count that no run comes to")
    try:
        saved = _SAVED.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]  # there may be thousands, and a status holds a sentence
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"what it remembers is of no form of ours: {where}: {first['msg']}"
        ) from None
    if saved.down not in CODEC_BY_NAME:
        raise ValueError(f"there is no codec {saved.down[:80]!r}")
    return saved


def check_numbers(saved: Saved) -> None:
    """Check what a file remembers that was not ours: that a run can average, and go on.

    Raises:
        ValueError: it has what no run comes to.
    """
    statistics, window = saved.statistics, saved.window
    replicas = statistics.replicas.values()
    averages = (statistics.pooled, statistics.norms, *(r.ema for r in replicas))
    norms = [*(one.first for one in averages), *(x for r in replicas for x in r.excluded)]
    norms += [norm for norm, _ in window.recent]
    # Squares of what is larger leave the range of floats, which Python refuses.
    are_norms = all(0.0 <= x <= NORM_MAX for x in norms)
    are_norms = are_norms and all(0.0 <= one.second <= NORM_MAX**2 for one in averages)
    has_average = all(0.0 <= e.bias < 1.0 if e.count else e == Ema() for e in averages)
    if not (are_norms and has_average and 0.0 <= window.age < math.inf):
        raise ValueError("what it remembers of norms is no average")
    if window.done and window.done >= window.size or not all(n for _, n in window.recent):
        raise ValueError("what it remembers of pushes is no window")
    if not (are_apart(saved.trained) and are_apart(saved.excluded)):
        raise ValueError("what it remembers of data is no set of ranges")


def _counts(kept: Any) -> Iterator[int]:
    """The whole numbers of a JSON value."""
    if isinstance(kept, dict):
        kept = cast(dict[str, Any], kept).values()
    elif not isinstance(kept, list | tuple):
        if isinstance(kept, int):
            yield kept
        return
    for one in cast(Iterable[Any], kept):
        yield from _counts(one)


def reports_from_json(text: str) -> tuple[RoundReport, ...]:
    """Read the reports that ``saved_to_json`` wrote: none, where they are of another version."""
    reports = cast(dict[str, Any], json.loads(text)).get("reports", [])
    with contextlib.suppress(ValidationError):  # they are not worth a run
        return tuple(_REPORTS.validate_python(reports))
    return ()
