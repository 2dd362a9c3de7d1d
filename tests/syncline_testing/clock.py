"""A clock that a test sets by hand, in place of a module's own."""

from __future__ import annotations

from types import ModuleType

import pytest


class Clock:
    """Stands for ``time`` where only ``monotonic`` is asked; call it to set it, in seconds."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def __call__(self, seconds: float) -> None:
        self._now_s = seconds


def set_by_hand(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Clock:
    """Give ``module`` such a clock until the test's end."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock
