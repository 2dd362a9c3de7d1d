"""Leased data of a small dataset that is walked very often: as few rows as of one that is not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from syncline_control.state import State
from syncline_control.tables import DataDone, DataSpan
from syncline_control.transaction import Transaction
from syncline_testing.control import Clock, on_both, with_replicas

pytestmark = [pytest.mark.anyio, on_both]

MANY = 50_000
ASK = {"incarnation": 1, "dataset": {"sequences": 100, "seed": 7}, "begun": True}
TRAINED = [[0, 0, 100, 9], [9, 0, 90], [10, 0, 100, MANY - 10], [MANY, 0, 30]]
EXCLUDED = [[9, 90, 100]]


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    return await with_replicas(api, "a", "b")


async def asked(api: httpx.AsyncClient, want: int, after: int = 0) -> httpx.Response:
    body = {**ASK, "want": want, "after": after}
    return await api.post("/v1/runs/r/replicas/a/data", json=body)


async def stands(
    api: httpx.AsyncClient,
    fragment: int,
    trained: Any,
    excluded: Any,
    at: float = 1000.0,
    fragments: int = 2,
    revision: int = 9,
) -> int:
    standing = {
        "fragment": fragment,
        "fragment_name": f"block {fragment}",
        "kind": "parameters",
        "revision": revision,
        "committed_at": at,
        "seconds": 0.0,
        "fragments": fragments,
        "data": {"trained": trained, "excluded": excluded},
    }
    answer = await api.post("/v1/runs/r/reports", json={"rounds": [standing]})
    return answer.status_code


def rows(tx: Transaction) -> list[int | None]:
    return [
        tx.session.scalar(select(func.count()).select_from(table)) for table in (DataDone, DataSpan)
    ]


@pytest.mark.parametrize("is_asked_first", [True, False], ids=["new database", "restored"])
async def test_a_run_goes_on_behind_any_number_of_epochs(
    api: httpx.AsyncClient, state: State, is_asked_first: bool
) -> None:
    if is_asked_first:
        assert (await asked(api, 10)).json()["code"] == "OVERLOADED"
    assert await stands(api, 0, TRAINED, EXCLUDED) == 204
    assert await stands(api, 1, TRAINED, EXCLUDED) == 204
    assert (await asked(api, 80)).json()["ranges"] == [[MANY, 30, 100], [MANY + 1, 0, 10]]
    seen = (await api.get("/v1/runs/r/data")).json()
    assert (seen["trained"], seen["excluded"]) == (100 * MANY + 20, 10)
    assert (seen["epoch"], seen["leased"]) == (MANY, 80)
    assert [one["epoch"] for one in seen["epochs"]] == [*range(MANY - 98, MANY + 2)]
    assert seen["epochs_left_out"] == MANY - 98
    assert seen["epochs"][-2:] == [
        {"epoch": MANY, "trained": 30, "excluded": 0, "leased": 70, "free": 0},
        {"epoch": MANY + 1, "trained": 0, "excluded": 0, "leased": 10, "free": 90},
    ]
    told = [one["message"] for one in (await api.get("/v1/events?run=r")).json()]
    done = [message for message in told if "of the data" in message]
    what = f"{100 * MANY - 10:,} sequences were trained, and 10 excluded."
    assert done == [f"Epochs 0 to {MANY - 1:,} of the data are done: {what}"]
    assert await state.do(rows) == [3, 1]


async def test_what_is_told_epoch_by_epoch_is_understood_and_what_is_no_set_is_not(
    api: httpx.AsyncClient,
) -> None:
    """As a sync service told it that did not know of more than one epoch at a time."""
    ranges = [[0, 0, 100], [1, 0, 100], [2, 0, 60]]
    for wrong in ([[1, 0, 9], [0, 0, 9]], [[0, 0, 9, 3], [2, 9, 10]], [[0, 0, 9, 0]], [[0, 5, 5]]):
        assert await stands(api, 0, wrong, []) == 422
        assert await stands(api, 0, ranges, wrong) == 422
    for fragment in (0, 1):
        assert await stands(api, fragment, ranges, []) == 204
    assert (await asked(api, 5)).json()["ranges"] == [[2, 60, 65]]


async def test_a_new_database_leases_nothing_before_each_fragment_has_told_all_that_it_has(
    api: httpx.AsyncClient,
) -> None:
    """Rounds are told of as they close, by a service that has not heard of it yet."""
    round_ = {
        "fragment_name": "block",
        "kind": "pseudo-gradient",
        "revision": 8,
        "committed_at": 999.0,
        "seconds": 0.0,
        "fragments": 2,
    }
    rounds = [{**round_, "fragment": fragment} for fragment in (0, 1)]
    words = [{"fragment": fragment, "membership": 1} for fragment in (0, 1)]  # an older database's
    told = {"rounds": rounds, "settled": words}
    assert (await api.post("/v1/runs/r/reports", json=told)).is_success
    assert await stands(api, 0, [[0, 0, 40]], []) == 204
    assert (await asked(api, 5)).json()["code"] == "OVERLOADED"
    assert await stands(api, 1, [[0, 0, 40]], []) == 204
    assert (await asked(api, 5)).json()["ranges"] == [[0, 40, 45]]


async def test_data_is_given_out_whatever_number_of_epochs_somebody_claims(
    api: httpx.AsyncClient, clock: Clock
) -> None:
    """A forged word; what the fragments themselves say next takes it back."""
    for fragment in (0, 1):
        assert await stands(api, fragment, [[0, 0, 100, (1 << 53) - 1]], []) == 204
    for after in range(3):
        answer = await asked(api, 150, after)
        assert answer.status_code == 200, answer.text
        assert answer.json()["number"] == after + 1
    for fragment in (0, 1):
        assert await stands(api, fragment, [[0, 0, 40]], [], at=2000.0) == 204
    for _ in range(30):  # until what was lost has settled
        clock.now += 5.0
        assert (await asked(api, 0, after=3)).status_code == 200
    assert (await asked(api, 10, after=3)).json()["ranges"] == [[0, 40, 50]]


async def test_how_many_fragments_a_run_has_says_who_told_last(api: httpx.AsyncClient) -> None:
    """So one wrong word, which nobody could ever take back, keeps nobody from the data."""
    assert await stands(api, 0, [], [], fragments=100_000) == 204
    assert "of 100000 fragments" in (await asked(api, 5)).json()["detail"]
    for fragment in (0, 1):
        assert await stands(api, fragment, [[0, 0, 40]], [], at=2000.0) == 204
    assert (await asked(api, 5)).json()["ranges"] == [[0, 40, 45]]


async def test_a_fragment_that_is_none_of_the_runs_holds_nothing_back(
    api: httpx.AsyncClient,
) -> None:
    """As after a wrong report: its word would be waited for for ever, and count for the run."""
    assert await stands(api, 7, [], [], fragments=8, revision=1) == 204
    for fragment in (0, 1):
        assert (await asked(api, 5)).json()["code"] == "OVERLOADED"
        assert await stands(api, fragment, [[0, 0, 40]], [], at=2000.0) == 204
    assert (await api.get("/v1/runs/r")).json()["revision"] == 9
    assert (await asked(api, 5)).json()["ranges"] == [[0, 40, 45]]
    assert (await api.delete("/v1/runs/r/replicas/a?incarnation=1")).is_success
    version = (await api.get("/v1/membership?wait_s=0")).json()["version"]
    words = [{"fragment": fragment, "membership": version} for fragment in (0, 1)]
    assert (await api.post("/v1/runs/r/reports", json={"settled": words})).is_success
    b = await api.post("/v1/runs/r/replicas/b/data", json={**ASK, "want": 5})
    assert b.json()["ranges"] == [[0, 40, 45]]
