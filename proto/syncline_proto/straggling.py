"""The settings of stragglers: who is one, and what is done about it.

They are the control plane's alone to follow, and may change while a run goes on.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from syncline_proto.section import Section

Policy = Literal["tell", "fewer-steps", "let-go"]


class StragglerSettings(Section):
    """Replicas that are slower than the others, by inner steps a second of their own time."""

    policy: Policy = "tell"
    """``tell``: name them. ``fewer-steps``: and let them make fewer inner steps in a round, so that
    it takes them as long as others. ``let-go``: and whom that does not help is asked to leave."""
    pace_min: float = Field(default=0.67, gt=0, lt=1)
    """Below this share of the median pace of the others a replica straggles."""
    seconds: float = Field(default=60.0, ge=1, le=86400)
    """For so long it is slower without a break before it is named."""
    share_min: float = Field(default=0.25, gt=0, le=1)
    """The least share of a round's inner steps that a straggler is given; by time, where everybody
    makes what it can, the share of the others' below which it may be asked to leave."""
    let_go_seconds: float = Field(default=600.0, ge=1, le=86400)
    """For so long it has made the least share, and was slower than even that, before it is asked to
    leave."""

    @model_validator(mode="after")
    def _a_straggler_may_make_fewer(self) -> Self:
        if self.share_min > self.pace_min:
            raise ValueError(
                f"share_min ({self.share_min:g}) must be at most pace_min ({self.pace_min:g}), or "
                "a straggler could never make as few steps as it needs."
            )
        return self
