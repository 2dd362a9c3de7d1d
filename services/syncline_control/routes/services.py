"""Sync services: where they listen, and whether they are alive."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query
from fastapi.openapi.models import Example

from syncline_control.body import StrictRoute
from syncline_control.operations import services
from syncline_control.routes.asking import Control, ServiceName
from syncline_proto.names import LINE_PATTERN
from syncline_proto.rest import (
    WHY_CHARACTERS_MAX,
    SyncEndpoint,
    SyncServiceAnswer,
    SyncServiceHello,
)

router = APIRouter(prefix="/v1/sync-services", tags=["sync services"], route_class=StrictRoute)

HELLO: dict[str, Example] = {
    "one": {
        "summary": "The only sync service",
        "value": {"name": "sync-0", "address": "10.0.0.5:50051", "instance": "5b0c2f"},
    },
    "first of two": {
        "summary": "One of two that share the fragments",
        "value": {
            "name": "sync-0",
            "address": "10.0.0.5:50051",
            "index": 0,
            "shards": 2,
            "instance": "93aa10",
        },
    },
}


@router.put("/{name}")
async def hello(
    state: Control,
    name: ServiceName,
    body: Annotated[SyncServiceHello, Body(openapi_examples=HELLO)],
) -> SyncServiceAnswer:
    """Say where the service listens; say so again within every `lease_s`."""
    return await state.do_first(services.hello, name, body)


@router.get("")
async def list_services(state: Control) -> list[SyncEndpoint]:
    """List the sync services, by index. Together they own every fragment once all are there."""
    return await state.do(services.endpoints)


@router.delete("/{name}", status_code=204)
async def leave(
    state: Control,
    name: ServiceName,
    instance: Annotated[str, Query(max_length=128, pattern=LINE_PATTERN)],
    why: Annotated[
        str,
        Query(
            max_length=WHY_CHARACTERS_MAX,
            pattern=LINE_PATTERN,
            description="What went wrong, if anything did; for the log.",
            examples=["The disk of /var/lib/syncline has not answered for 20 s."],
        ),
    ] = "",
) -> None:
    """Say that the service ends. An instance that is not the newest of its name changes nothing."""
    await state.do(services.leave, name, instance, why)
