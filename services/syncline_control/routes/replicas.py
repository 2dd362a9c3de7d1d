"""Replicas: register, heartbeat, drain, kick, leave."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query
from fastapi.openapi.models import Example

from syncline_control.body import StrictRoute
from syncline_control.operations import replicas
from syncline_control.routes.asking import Beats, Control, ReplicaName, RunName
from syncline_proto.names import LINE_PATTERN
from syncline_proto.rest import (
    WHY_CHARACTERS_MAX,
    Heartbeat,
    HeartbeatAnswer,
    Registration,
    ReplicaRegister,
    ReplicaView,
)

router = APIRouter(prefix="/v1/runs/{run}/replicas", tags=["replicas"], route_class=StrictRoute)

NEW_REPLICA: dict[str, Example] = {
    "two ranks": {
        "summary": "A replica of two ranks",
        "value": {"replica": "replica-0", "ranks": 2, "host": "gpu-17", "pid": 4242},
    }
}
BEAT: dict[str, Example] = {
    "training": {
        "summary": "In training, with one point of the loss curve",
        "value": {
            "incarnation": 1,
            "progress": {
                "phase": "training",
                "inner_step": 640,
                "tokens": 1_310_720,
                "loss": 1.92,
                "tokens_per_second": 20_500.0,
                "exposed_sync_s": 1.4,
                "wall_s": 64.0,
            },
            "points": [{"kind": "train", "tokens": 2_621_440, "loss": 1.92, "inner_step": 640}],
        },
    }
}


@router.post("")
async def register_replica(
    state: Control,
    run: RunName,
    body: Annotated[ReplicaRegister, Body(openapi_examples=NEW_REPLICA)],
) -> Registration:
    """Ask for a lease. The same name again starts a new incarnation and fences the older one.

    LEASE_LOST means: an operator removed this replica, and only another name may join.
    """
    return await state.do(replicas.register, run, body)


@router.get("")
async def list_replicas(state: Control, run: RunName) -> list[ReplicaView]:
    """List every replica that ever came, in the order in which they first did."""
    return await state.do(replicas.listed, run)


@router.post("/{replica}/heartbeat")
async def heartbeat(
    pulse: Beats,
    run: RunName,
    replica: ReplicaName,
    body: Annotated[Heartbeat, Body(openapi_examples=BEAT)],
) -> HeartbeatAnswer:
    """Renew the lease. LEASE_LOST means: stop; it ran out, was taken, or another life has it."""
    return await pulse.beat(run, replica, body)


@router.post("/{replica}/drain")
async def drain_replica(state: Control, run: RunName, replica: ReplicaName) -> ReplicaView:
    """Ask the replica to push what it has done and leave. RUN_CONFLICT means: it is gone."""
    return await state.do(replicas.drain, run, replica)


@router.post("/{replica}/kick")
async def kick_replica(state: Control, run: RunName, replica: ReplicaName) -> ReplicaView:
    """Take the replica's lease away at once; it may not come back under this name.

    Whatever it asks for after that is answered with LEASE_LOST in the same sentence. To send a
    replica home for a while, drain it.
    """
    return await state.do(replicas.kick, run, replica)


@router.delete("/{replica}", status_code=204)
async def leave(
    state: Control,
    run: RunName,
    replica: ReplicaName,
    incarnation: Annotated[int, Query(ge=1)],
    why: Annotated[
        str,
        Query(
            max_length=WHY_CHARACTERS_MAX,
            pattern=LINE_PATTERN,
            description="What made it leave, if it did not come to its end; for the run's log.",
            examples=["The run trains another model."],
        ),
    ] = "",
) -> None:
    """Give the lease back. An incarnation that does not hold it changes nothing.

    LEASE_LOST means: an operator took it, so there is nothing to give back.
    """
    await state.do(replicas.leave, run, replica, incarnation, why)
