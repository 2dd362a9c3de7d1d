"""What the schema of a body leaves open, and the tables do not."""

from __future__ import annotations

import math


def finite(value: float | None) -> float | None:
    """The number, or None if it is not finite: NaN has no place in JSON."""
    return value if value is not None and math.isfinite(value) else None
