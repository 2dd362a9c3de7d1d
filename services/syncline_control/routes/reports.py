"""Reports: what sync services tell of a run's rounds, and how it is read again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response
from fastapi.openapi.models import Example

from syncline_control.body import StrictRoute
from syncline_control.operations import points, reports
from syncline_control.routes.asking import Control, RunName
from syncline_control.routes.listing import InTurn
from syncline_proto.reports import Reports, RoundReport
from syncline_proto.rest import MetricSeries

router = APIRouter(prefix="/v1/runs/{run}", tags=["reports"], route_class=StrictRoute)

ROUND: dict[str, Example] = {
    "round": {
        "summary": "One round of one fragment, one push excluded",
        "value": {
            "rounds": [
                {
                    "fragment": 0,
                    "fragment_name": "embeddings",
                    "kind": "pseudo-gradient",
                    "revision": 7,
                    "committed_at": 1_767_225_600.0,
                    "seconds": 0.8,
                    "committed_tokens": 917_504,
                    "effective_sample_size": 1.0,
                    "contributions": [
                        {
                            "replica": "replica-0",
                            "incarnation": 1,
                            "verdict": "accepted",
                            "weight": 1.0,
                            "norm": 0.42,
                            "z": 0.3,
                            "inner_steps": 64,
                            "tokens": 131_072,
                        },
                        {
                            "replica": "replica-1",
                            "incarnation": 1,
                            "verdict": "anomalous",
                            "weight": 0.0,
                            "norm": 417.0,
                            "reason": "norm 417 is over 10 times the pooled mean",
                        },
                    ],
                }
            ],
            "events": [
                {
                    "kind": "push.excluded",
                    "message": "replica-1 was excluded from round 7 of embeddings.",
                    "replica": "replica-1",
                }
            ],
        },
    }
}


@router.post("/reports", status_code=204)
async def add_reports(
    state: Control,
    run: RunName,
    body: Annotated[Reports, Body(openapi_examples=ROUND)],
) -> None:
    """Take in rounds and events. A round that is told twice counts once; an event, twice."""
    await state.do(reports.add, run, body)


@router.get("/rounds", response_model=list[RoundReport])
async def list_rounds(
    state: Control,
    listing: InTurn,
    run: RunName,
    limit: Annotated[int, Query(ge=1, le=reports.ROUNDS_KEPT)] = 200,
) -> Response:
    """List the newest rounds, the oldest of them first."""
    return await listing.answer(lambda: state.do(reports.newest_rounds, run, limit))


@router.get("/metrics", response_model=list[MetricSeries])
async def list_curves(
    state: Control,
    listing: InTurn,
    run: RunName,
    points_max: Annotated[int, Query(ge=2, le=points.POINTS_MAX, alias="points")] = (
        points.POINTS_MAX
    ),
) -> Response:
    """Return the loss curves, each of at most `points` points, evenly spread."""
    return await listing.answer(lambda: state.do(points.series, run, points_max))
