"""Leased data of many pieces: a ledger that stays small, in few statements whatever ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event

from syncline_control.core.ledger import Ledger
from syncline_control.core.shares import HELD_MAX, SPANS_MAX
from syncline_control.operations import data
from syncline_testing.control import on_both, with_replicas
from syncline_testing.queries import queries_of

pytestmark = [pytest.mark.anyio, on_both]

ASK = {"dataset": {"sequences": 1, "seed": 0}, "want": 1 << 24}
LARGE = {"dataset": {"sequences": 1 << 24, "seed": 0}}


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    return await with_replicas(api, "a", "b")


async def asked(api: httpx.AsyncClient, replica: str, **body: Any) -> httpx.Response:
    body = {"incarnation": 1, **body}
    return await api.post(f"/v1/runs/r/replicas/{replica}/data", json=body)


def odd(start: int) -> list[list[int]]:
    """As many pieces as one call may name."""
    return [[0, start + 2 * at, start + 2 * at + 1] for at in range(256)]


@contextmanager
def statements() -> Iterator[list[str]]:
    """Those that write spans."""
    seen: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "data_spans" in statement and not statement.startswith("SELECT"):
            seen.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def test_who_only_asks_is_answered_with_nothing_once_it_holds_much(
    api: httpx.AsyncClient,
) -> None:
    after, held = 0, 0
    for _ in range(6):
        answer = (await asked(api, "a", **ASK, after=after)).json()
        after, held = answer["number"], held + len(answer["ranges"])
    assert (after, held) == (4, HELD_MAX)
    assert (await asked(api, "a", **ASK, after=after)).json() == {"number": after, "ranges": []}
    with statements() as seen:
        await api.post("/v1/runs/r/replicas", json={"replica": "a"})
    assert seen == ["UPDATE"], "its pieces settle, all at once"
    assert (await asked(api, "a", **ASK, incarnation=2)).json()["ranges"] == []
    assert len((await asked(api, "b", **ASK)).json()["ranges"]) == 256


async def test_who_comes_goes_or_asks_is_not_held_up_by_all_that_is_done(
    api: httpx.AsyncClient,
) -> None:
    """What is done may be in very many pieces, where pushes were excluded."""
    assert (await asked(api, "a", **LARGE, want=5)).is_success
    with queries_of("data_done") as seen:
        await api.post("/v1/runs/r/replicas", json={"replica": "a"})
        assert (await asked(api, "a", **LARGE, want=5, incarnation=2)).is_success
        settled = [{"fragment": 0, "membership": 1}]
        await api.post("/v1/runs/r/reports", json={"settled": settled})
        await api.post("/v1/runs/r/replicas/a/kick")
    assert seen == []


async def test_the_ledger_is_written_in_three_statements(api: httpx.AsyncClient) -> None:
    assert (await asked(api, "a", **LARGE, want=1 << 20)).is_success
    with statements() as seen:
        assert (await asked(api, "a", **LARGE, after=1, returned=odd(0))).is_success
    assert sorted(seen) == ["INSERT", "UPDATE"]
    with statements() as seen:
        assert (await asked(api, "a", **LARGE, after=1, returned=[[0, 0, 1 << 20]])).is_success
    assert sorted(seen) == ["DELETE", "UPDATE"]
    assert (await asked(api, "b", **LARGE, want=5)).json()["ranges"] == [[0, 0, 5]]


async def test_nobody_gives_back_in_pieces_without_end(api: httpx.AsyncClient) -> None:
    assert (await asked(api, "a", **LARGE, want=1 << 20)).is_success
    calls = SPANS_MAX // 512 + 1
    answers = [
        await asked(api, "a", **LARGE, after=1, returned=odd(512 * call)) for call in range(calls)
    ]
    assert [answer.status_code for answer in answers] == [200] * (calls - 1) + [429]
    assert answers[-1].json()["code"] == "OVERLOADED"
    assert (await asked(api, "a", **LARGE, after=1, returned=[[0, 0, 1 << 20]])).is_success


def told(fragment: int, at: float, data: Any = None, pushed: Any = None) -> dict[str, Any]:
    """A fragment's standing, or a round with one push of it."""
    push = {"replica": "a", "incarnation": 1, "verdict": "accepted", "weight": 1.0, "data": pushed}
    return {
        "fragment": fragment,
        "fragment_name": f"block {fragment}",
        "kind": "pseudo-gradient" if pushed else "parameters",
        "revision": int(at),
        "committed_at": at,
        "seconds": 0.0,
        "fragments": 2,
        **({"data": {"trained": data}} if data is not None else {}),
        **({"contributions": [push]} if pushed else {}),
    }


@pytest.mark.parametrize("is_asked_first", [True, False], ids=["known", "kept for later"])
async def test_one_body_of_many_reports_takes_each_fragments_data_up_once(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, is_asked_first: bool
) -> None:
    """Each of thousands took up all that the run had; every run waited meanwhile."""
    ask, calls = {"dataset": {"sequences": 100, "seed": 0}, "want": 5, "begun": True}, list[int]()

    def counted(of: Any, name: str) -> None:
        act = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *args: calls.append(1) or act(*args))

    if is_asked_first:
        assert (await asked(api, "a", **ask | {"want": 0})).is_success
    counted(Ledger, "stands")
    counted(data, "added")
    many = [told(at % 2, 10.0 + at, [[0, 0, 90 - at // 2]]) for at in range(80)]
    pushes = [told(at % 2, 100.0 + at, pushed=[[0, 60 + at, 61 + at]]) for at in range(20)]
    answer = await api.post("/v1/runs/r/reports", json={"rounds": [*many, *pushes]})
    assert answer.is_success and len(calls) <= 4
    assert (await asked(api, "b", **ask)).json()["ranges"] == [[0, 51, 56]], "of the last word"
    seen = (await api.get("/v1/runs/r/data")).json()["epochs"][0]
    assert (seen["trained"], seen["leased"]) == (51, 5 + 20 * is_asked_first), "a has those"
