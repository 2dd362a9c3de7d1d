"""Reports of a run that has had very many replicas: none looks at all of them."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import event

from syncline_control.operations import reports
from syncline_control.tables import Replica
from syncline_testing.control import on_both, with_replicas

pytestmark = [pytest.mark.anyio, on_both]


async def test_a_report_looks_up_who_is_here_and_who_is_named(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "NAMED_AT_ONCE", 1)
    await with_replicas(api, *"abcde")
    for name in "cde":
        await api.delete(f"/v1/runs/r/replicas/{name}?incarnation=1")
    verdicts = {"a": "accepted", "c": "anomalous", "d": "anomalous"}
    told = {
        "fragment": 0,
        "fragment_name": "block 0",
        "kind": "pseudo-gradient",
        "revision": 1,
        "committed_at": 1000.0,
        "seconds": 0.5,
        "contributions": [
            {"replica": name, "incarnation": 1, "verdict": verdict, "weight": 0.5}
            for name, verdict in verdicts.items()
        ],
    }
    seen: list[str] = []

    def note(row: Replica, _context: object) -> None:
        seen.append(row.name)

    event.listen(Replica, "load", note)
    try:
        answer = await api.post("/v1/runs/r/reports", json={"rounds": [told]})
    finally:
        event.remove(Replica, "load", note)
    assert answer.is_success and sorted(seen) == ["a", "b", "c", "d"]
    listed = (await api.get("/v1/runs/r/replicas")).json()
    assert [one["exclusions"] for one in listed] == [0, 0, 1, 1, 0]
    assert [one["taking_part"] for one in listed] == [True] + [False] * 4
