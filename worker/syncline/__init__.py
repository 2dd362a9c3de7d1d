"""Syncline: one language model, trained on machines that cannot afford to talk at every step.

Importing this package is cheap: what it offers is loaded with its first use, so that a command line
that only asks a service does not wait for torch, and hears Ctrl+C from the first instant on.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own would load typing
if TYPE_CHECKING:
    from typing import Any

    from syncline.replica import Replica
    from syncline.stats import Stats
    from syncline_proto.errors import LeaseLost, SynclineError
    from syncline_proto.settings import RunSettings

__all__ = ["LeaseLost", "Replica", "RunSettings", "Stats", "SynclineError"]

_ROOMS = {
    "LeaseLost": "syncline_proto.errors",
    "Replica": "syncline.replica",
    "RunSettings": "syncline_proto.settings",
    "Stats": "syncline.stats",
    "SynclineError": "syncline_proto.errors",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        from importlib import import_module

        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'syncline' has no attribute {name!r}")
