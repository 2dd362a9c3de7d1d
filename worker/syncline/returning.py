"""Whether a replica that has lost its lease may come back: as the control plane tells it."""

from __future__ import annotations

from contextlib import closing

from syncline.control import ControlClient
from syncline.wish import Wish
from syncline_proto.errors import SynclineError
from syncline_proto.rest import Registration, ReplicaState


def has_run_out(wish: Wish, me: Registration) -> bool:
    """Whether this life's lease has run out, and no other life has come in its place.

    Not where an operator removed the replica, or where nobody answers.
    """
    connect_s = me.run.settings.timeouts.connect_s
    with closing(ControlClient(wish.control, wish.token, connect_s)) as client:
        try:
            known = client.replicas(me.run.name)
        except SynclineError:
            return False
    return any(
        one.replica == me.replica
        and one.incarnation == me.incarnation
        and one.state is ReplicaState.LOST
        for one in known
    )
