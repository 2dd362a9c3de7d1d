"""Where a sync service listens by now: one that does not answer may have come back elsewhere.

Who it is, its place among those that share the fragments says; the control plane knows where it is.
Each rank asks for itself, and only while its own calls fail: no word of it goes between ranks, and
a service that answers is never left.
"""

from __future__ import annotations

from contextlib import closing

from syncline.control import ControlClient
from syncline_proto.addresses import sync_address
from syncline_proto.errors import SynclineError
from syncline_proto.owners import Seat

ASK_S = 5.0
"""For an answer of the control plane: whoever asks has a call of its own to repeat."""


def found_elsewhere(control: str, token: str | None, seat: Seat, address: str) -> str | None:
    """Where the service of a seat listens, if that is not ``address``; None: nobody can say."""
    try:
        # OSError: it reads files of certificates, and no descriptor may be left for them.
        with closing(ControlClient(control, token, ASK_S, ASK_S)) as client:
            services = client.sync_services()
        alive = [one for one in services if one.alive and Seat(one.index, one.shards) == seat]
        return next((sync_address(one.address) for one in alive if one.address != address), None)
    except (SynclineError, OSError):
        return None
