"""Replicas on one machine hear it where they have more threads than it has cores."""

from __future__ import annotations

from typing import Any

from syncline.crowd import crowding, processes_beside
from syncline_proto.rest import ReplicaState, ReplicaView


def replica(name: str, **given: Any) -> ReplicaView:
    return ReplicaView(
        replica=name, incarnation=1, **{"state": ReplicaState.ALIVE, "host": "box", **given}
    )


def test_those_count_that_are_alive_on_this_host_in_other_processes() -> None:
    there = [
        replica("own", pid=7, ranks=4),
        replica("beside", pid=8, ranks=2),
        replica("gone", pid=9, state=ReplicaState.LOST),
        replica("elsewhere", pid=10, host="other"),
    ]
    assert processes_beside(there, "box", 7) == 2


def test_only_who_leaves_the_others_no_core_is_told_what_its_part_is() -> None:
    assert crowding(1, 0, threads=8, cores=4) is None, "nobody is beside it"
    assert crowding(1, 1, threads=4, cores=8) is None
    told = crowding(1, 1, threads=8, cores=8)
    assert told is not None and "2 processes of this run on this machine share 8" in told["why"]
    assert "OMP_NUM_THREADS=4, or train.threads" in told["so"]
    few = crowding(2, 3, threads=2, cores=4)
    assert few is not None and "OMP_NUM_THREADS=1," in few["so"]
