"""Leased data: who asks for sequences, and how far a run has come in them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from fastapi.openapi.models import Example

from syncline_control.body import StrictRoute
from syncline_control.operations import data
from syncline_control.routes.asking import Control, ReplicaName, RunName
from syncline_proto.leased import DataAsk, DataGrant, DataView

router = APIRouter(prefix="/v1/runs/{run}", tags=["data"], route_class=StrictRoute)

ASK: dict[str, Example] = {
    "first": {
        "summary": "The first call, for 512 sequences",
        "value": {
            "incarnation": 1,
            "dataset": {"sequences": 100_000, "seed": 0},
            "want": 512,
        },
    },
    "more": {
        "summary": "256 more, and 64 given back",
        "value": {
            "incarnation": 1,
            "dataset": {"sequences": 100_000, "seed": 0},
            "want": 256,
            "after": 3,
            "returned": [[0, 448, 512]],
        },
    },
}


@router.post("/replicas/{replica}/data")
async def lease_data(
    state: Control,
    run: RunName,
    replica: ReplicaName,
    body: Annotated[DataAsk, Body(openapi_examples=ASK)],
) -> DataGrant:
    """Lease sequences: the least trained ones that nobody holds. Renews the replica's own lease.

    What was given with grants later than `after` is given again, and nothing else: so an answer
    that was lost loses nothing. Who holds very many pieces that are not done is given fewer, or
    none. DATA_MISMATCH means: the run's data is another; OVERLOADED, of a
    run that has begun: sync services are still to tell what it was trained on.
    """
    return await state.do(data.ask, run, replica, body)


@router.get("/data")
async def show_data(state: Control, run: RunName) -> DataView:
    """Tell how far the run has come in its data, epoch by epoch, and who holds what."""
    return await state.do(data.view, run)
