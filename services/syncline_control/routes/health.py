"""Health and metrics, for probes and Prometheus; outside /v1, without a token."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text

from syncline_control.operations import fleet
from syncline_control.routes.asking import Control, Registry
from syncline_control.tables import Plane
from syncline_control.transaction import Transaction
from syncline_proto.errors import StoreError, Unreachable

router = APIRouter(tags=["health"])


@router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> PlainTextResponse:
    """The process answers."""
    return PlainTextResponse("ok\n")


@router.get("/readyz", response_class=PlainTextResponse)
async def readyz(state: Control) -> PlainTextResponse:
    """The database answers, too, and takes what is written."""
    try:
        await state.do(_try_to_write if state.writes_fail else _ask)
    except StoreError as error:
        raise Unreachable(error.message) from error
    return PlainTextResponse("ready\n")


@router.get("/metrics", response_class=PlainTextResponse)
async def prometheus(state: Control, registry: Registry) -> Response:
    """Metrics in Prometheus' text format."""
    snapshot = await state.do(fleet.snapshot)
    return Response(registry.text(snapshot, state.event_counts), media_type=CONTENT_TYPE_LATEST)


def _ask(tx: Transaction) -> None:
    tx.session.execute(text("SELECT 1"))


def _try_to_write(tx: Transaction) -> None:
    """Nobody else may: who is not ready is sent nothing but probes."""
    # Something that changes: SQLite does not write what is there already.
    tx.session.get_one(Plane, 1).membership_version += 1
