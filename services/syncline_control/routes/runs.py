"""Runs: create, look at, change live settings, pause, resume, stop, finish."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response
from fastapi.openapi.models import Example

from syncline_control.body import StrictRoute
from syncline_control.core.runs import Act
from syncline_control.operations import runs
from syncline_control.routes.asking import Control, RunName
from syncline_control.routes.listing import InTurn
from syncline_proto.rest import RunCreate, RunView, Scale, SettingsPatch

router = APIRouter(prefix="/v1", tags=["runs"], route_class=StrictRoute)

NEW_RUN: dict[str, Example] = {
    "edit": {
        "summary": "Two replicas with EDiT",
        "value": {
            "name": "my-run",
            "settings": {
                "strategy": "edit",
                "sync_every": 64,
                "expected_replicas": 2,
                "token_budget": 20_000_000,
            },
        },
    },
    "averaging": {
        "summary": "Plain averaging, every 16 inner steps",
        "value": {"name": "plain", "settings": {"strategy": "local-sgd", "sync_every": 16}},
    },
}
LIVE_CHANGE: dict[str, Example] = {
    "outer": {"summary": "A smaller outer step", "value": {"settings": {"outer": {"lr": 0.5}}}}
}


@router.post(
    "/runs",
    status_code=201,
    responses={200: {"model": RunView, "description": "It is there already, with equal settings."}},
)
async def create_run(
    state: Control,
    response: Response,
    body: Annotated[RunCreate, Body(openapi_examples=NEW_RUN)],
) -> RunView:
    """Create a run. With equal settings, creating it again answers with the one that is there."""
    view, new = await state.do(runs.create, body)
    response.status_code = 201 if new else 200
    return view


@router.get("/runs", response_model=list[RunView])
async def list_runs(
    state: Control, listing: InTurn, limit: Annotated[int, Query(ge=1, le=runs.RUNS_MAX)] = 1000
) -> Response:
    """List the newest runs, newest first, without their jobs: each run's own answer has that."""
    return await listing.answer(lambda: state.do(runs.newest, limit), without=frozenset({"job"}))


@router.get("/runs/{run}")
async def get_run(state: Control, run: RunName) -> RunView:
    """Look at one run."""
    return await state.do(runs.get, run)


@router.patch("/runs/{run}/settings")
async def patch_settings(
    state: Control,
    run: RunName,
    body: Annotated[SettingsPatch, Body(openapi_examples=LIVE_CHANGE)],
) -> RunView:
    """Change live settings from the next round on.

    These are sync_every, sync_seconds, min_round_steps, quorum, grace_seconds, late, stragglers,
    outer, penalty and codec.
    """
    return await state.do(runs.patch_settings, run, body)


@router.put("/runs/{run}/scale")
async def scale_run(state: Control, run: RunName, body: Scale) -> RunView:
    """Say how many replicas there should be; who starts and ends them makes it so."""
    return await state.do(runs.scale, run, body)


@router.post("/runs/{run}/pause")
async def pause_run(state: Control, run: RunName) -> RunView:
    """Let replicas finish their inner step and wait."""
    return await state.do(runs.act, run, Act.PAUSE)


@router.post("/runs/{run}/resume")
async def resume_run(state: Control, run: RunName) -> RunView:
    """Let a paused run go on."""
    return await state.do(runs.act, run, Act.RESUME)


@router.post("/runs/{run}/stop")
async def stop_run(state: Control, run: RunName) -> RunView:
    """End the run for good; replicas leave."""
    return await state.do(runs.act, run, Act.STOP)


@router.post("/runs/{run}/finish")
async def finish_run(state: Control, run: RunName) -> RunView:
    """Say that the token budget is committed; replicas call it at the last round."""
    return await state.do(runs.act, run, Act.FINISH)
