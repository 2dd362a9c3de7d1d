"""Syncline: one language model, trained on machines that cannot afford to talk at every step.

Importing this package is cheap; torch is loaded with the first use of ``Replica``, so that a
command line that only asks a service does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from syncline_proto.errors import SynclineError
from syncline_proto.settings import RunSettings

if TYPE_CHECKING:
    from syncline.replica import Replica, Stats

__all__ = ["Replica", "RunSettings", "Stats", "SynclineError"]


def __getattr__(name: str) -> Any:
    if name in ("Replica", "Stats"):
        from syncline import replica

        return getattr(replica, name)
    raise AttributeError(f"module 'syncline' has no attribute {name!r}")
