"""A replica of this process that stands still for longer than its lease, as a machine that slept.

Its heartbeat is held up meanwhile; all else goes on where it was.
"""

from __future__ import annotations

from typing import Any

from syncline import Replica
from syncline_testing.cluster import Cluster
from syncline_testing.waiting import wait_until

LEASE_S = 2.0
WAIT_S = 30.0


def sleeps(cluster: Cluster, replica: Replica | None) -> None:
    """Come back when the lease has run out, and the replica has heard of it."""
    assert replica is not None and replica._life is not None
    pulse: Any = replica._life.pulse
    send = pulse._client.heartbeat

    def lost() -> bool:
        return {"replica": replica.name, "state": "lost"}.items() <= view().items()

    def view() -> dict[str, Any]:
        views = cluster.get(f"/runs/{replica.run}/replicas")
        return next(one for one in views if one["replica"] == replica.name)

    def late(*given: Any) -> Any:
        wait_until(lost, WAIT_S, "the lease has run out")
        return send(*given)

    pulse._client.heartbeat = late
    wait_until(lambda: pulse.news.lost is not None, WAIT_S, "the replica has heard of it")
