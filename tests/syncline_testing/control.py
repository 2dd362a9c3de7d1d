"""A control plane in this process whose time is moved by hand."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import pytest

from syncline_control.app import create_app
from syncline_control.state import State

SQLITE, POSTGRES = "sqlite", "postgres"

on_both = pytest.mark.parametrize("database", [SQLITE, POSTGRES], indirect=True)
"""For a file whose tests hold whichever database the control plane has."""
on_both_at_length = pytest.mark.parametrize(
    "database", [SQLITE, pytest.param(POSTGRES, marks=pytest.mark.long)], indirect=True
)
"""As ``on_both``, for tests that go through minutes of the clock, with thousands of calls."""


@dataclass(slots=True)
class Clock:
    """A clock that stands until it is moved."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def client_of(state: State) -> httpx.AsyncClient:
    """A client of the app over this state; faults of ours are answered as a server would."""
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://control")


async def pass_time(state: State, clock: Clock, seconds: float) -> None:
    """Let time go by as it does while the control plane runs well."""
    end, step = clock.now + seconds, 0.25
    while clock.now < end:
        clock.now = min(clock.now + step, end)
        step = await state.review_leases()


async def with_replicas(api: httpx.AsyncClient, *names: str) -> httpx.AsyncClient:
    """The client, of a run ``r`` that these replicas have joined."""
    await api.post("/v1/runs", json={"name": "r"})
    for name in names:
        await api.post("/v1/runs/r/replicas", json={"replica": name})
    return api
