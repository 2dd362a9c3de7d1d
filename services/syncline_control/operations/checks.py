"""What the schema of a body leaves open, and the tables do not."""

from __future__ import annotations

import math

MEAN_MAX = 1e100
"""PostgreSQL squares what it takes the mean of, and refuses the whole query where a square is out
of its range: one replica's number must not be in the way of all who look at its run, or join it."""


def finite(value: float | None) -> float | None:
    """The number, or None if it is not finite: NaN has no place in JSON."""
    return value if value is not None and math.isfinite(value) else None


def to_average(value: float) -> float | None:
    """The number, or None where the database could take no mean with it."""
    return value if abs(value) <= MEAN_MAX else None
