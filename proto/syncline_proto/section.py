"""A group of settings, as people write them: nothing unknown, nothing of another kind.

What a setting means, and which go together, is said where each group is.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A group of settings; an unknown key is an error, and a value never changes in place."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, about: ValidationInfo) -> Any:
        """Python counts with true as 1; whoever writes it meant something else."""
        asked = cls.model_fields[str(about.field_name)].annotation
        if isinstance(value, bool) and asked is not bool and bool not in get_args(asked):
            raise ValueError(f"must not be {str(value).lower()}, which is no value of this kind")
        return value
