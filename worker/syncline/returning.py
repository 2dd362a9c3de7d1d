"""Whether a replica that has lost its lease may come back: as the control plane tells it."""

from __future__ import annotations

from contextlib import closing

from syncline.control import ControlClient
from syncline.ranks import Ranks
from syncline.recall import Recall
from syncline.wish import Wish
from syncline_proto.errors import RunUnknown, SynclineError
from syncline_proto.rest import Registration, ReplicaState


def may_return(wish: Wish, me: Registration, recall: Recall, ranks: Ranks) -> bool:
    """Whether who has lost its lease may start again: rank 0 asks, and all ranks hear the same.

    Not where one of them was asked to leave meanwhile.

    Raises:
        ProcessFailed: another rank is gone, or did not come in time.
    """
    if recall.hear(bool(asked) for (asked,) in ranks.gather([recall.is_set()])):
        return False
    return ranks.share(lambda: has_run_out(wish, me))


def has_run_out(wish: Wish, me: Registration) -> bool:
    """Whether this life's lease has run out, and no other life has come in its place.

    So it has where the database is another, or older, and knows nothing of this life. Not where an
    operator removed the replica, or where nobody answers.
    """
    connect_s = me.run.settings.timeouts.connect_s
    with closing(ControlClient(wish.control, wish.token, connect_s)) as client:
        try:
            known = {one.replica: one for one in client.replicas(me.run.name)}
        except RunUnknown:  # runs are never removed
            return True
        except SynclineError:
            return False
    mine = known.get(me.replica)
    if mine is None or mine.incarnation < me.incarnation:
        return True
    return mine.incarnation == me.incarnation and mine.state is ReplicaState.LOST
