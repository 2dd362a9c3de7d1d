"""What a body may hold beyond what its schema says, so that it fits the tables.

Each check returns its value, or raises InvalidRequest naming the field.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ValidationError

from syncline_proto.errors import InvalidRequest

INTEGER_MAX = (1 << 63) - 1


def counted(value: int, field: str) -> int:
    """A count: not negative, and within 64 bits."""
    if not 0 <= value <= INTEGER_MAX:
        raise InvalidRequest(f"{field}: {value} is not a count from 0 to 2**63 - 1.")
    return value


def short(value: str, field: str, characters_max: int) -> str:
    """A text of bounded length without control characters."""
    if len(value) > characters_max:
        raise InvalidRequest(f"{field}: longer than {characters_max} characters.")
    if any(ord(character) < 32 for character in value):
        raise InvalidRequest(f"{field}: control characters are not allowed.")
    return value


def finite(value: float | None) -> float | None:
    """The number, or None if it is not finite: NaN has no place in JSON."""
    return value if value is not None and math.isfinite(value) else None


def stored(model: BaseModel, field: str) -> str:
    """The model as JSON text that can be read back: NaN and infinity become null, where allowed."""
    text = model.model_dump_json()
    try:
        type(model).model_validate_json(text)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
        raise InvalidRequest(f"{field}.{where}: the number must be finite.") from None
    return text
