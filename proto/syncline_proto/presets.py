"""Strategies: what a run's settings are where its own say nothing else.

Names and values only; ``settings`` knows what they mean.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel

PRESETS: dict[str, dict[str, Any]] = {
    "local-sgd": {
        "outer": {"lr": 1.0, "momentum": 0.0, "clip": None},
        "penalty": {"enabled": False},
    },
    "diloco": {"outer": {"clip": None}, "penalty": {"enabled": False}},
    "edit": {},
    "edit-paper": {
        "outer": {"lr": 0.8, "momentum": 0.85},
        "penalty": {"temperature": 1.0, "ratio_min": 1.0},
    },
    # Of four times as many steps the norm is two to four times as large, for which exp(-G/T) would
    # give a push a third to a sixth of the others' weight; its share of the steps makes up for it.
    "a-edit": {"sync_seconds": 600.0, "penalty": {"step_power": 1.0}},
    # By time, everybody's steps are in proportion to its speed (dynamic local updates). How long
    # the synchronous phase before it should be (``warmup_steps``) goes by the run's budget.
    "async": {
        "asynchronous": True,
        "sync_seconds": 600.0,
        "outer": {"lr": 0.4, "momentum": 0.8},
        "penalty": {"step_power": 1.0},
    },
    "streaming": {
        "fragment_groups": 10_000,
        "overlap_steps": 5,
        "outer": {"lr": 0.4, "clip": None},
        "penalty": {"enabled": False},
    },
}


def under(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge two nested dictionaries; ``over`` wins."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, BaseModel):
            merged[key] = value
        elif isinstance(below, dict) and isinstance(value, dict):
            merged[key] = under(cast(dict[str, Any], below), cast(dict[str, Any], value))
        else:
            merged[key] = value
    return merged
