"""What sync services tell: rounds, verdicts, events; and what is read of it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from syncline_control import transaction
from syncline_control.operations import points, reports
from syncline_control.state import State
from syncline_proto.reports import RoundReport
from syncline_testing.control import Clock, on_both, with_replicas

pytestmark = [pytest.mark.anyio, on_both]


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """A run of replicas a and b."""
    return await with_replicas(api, "a", "b")


def push(replica: str, weight: float, z: float | None = None, **more: Any) -> dict[str, Any]:
    verdict = "accepted" if weight else "anomalous"
    base = {"replica": replica, "incarnation": 1, "verdict": verdict, "weight": weight, "z": z}
    return {**base, **more}


def round_of(fragment: int, revision: int, *pushes: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {
        "fragment": fragment,
        "fragment_name": f"block {fragment}",
        "kind": "pseudo-gradient",
        "revision": revision,
        "committed_at": 1000.0 + revision,
        "seconds": 0.5,
        "committed_tokens": 100 * revision,
        "contributions": list(pushes),
    }
    return {**base, **more}


async def report(api: httpx.AsyncClient, *rounds: dict[str, Any], **more: Any) -> httpx.Response:
    return await api.post("/v1/runs/r/reports", json={"rounds": list(rounds), **more})


async def beat(api: httpx.AsyncClient, **rest: Any) -> httpx.Response:
    return await api.post("/v1/runs/r/replicas/a/heartbeat", json={"incarnation": 1, **rest})


async def run(api: httpx.AsyncClient) -> dict[str, Any]:
    return (await api.get("/v1/runs/r")).json()


async def membership(api: httpx.AsyncClient) -> dict[str, Any]:
    return (await api.get("/v1/membership")).json()


async def replica(api: httpx.AsyncClient, name: str) -> dict[str, Any]:
    listed = (await api.get("/v1/runs/r/replicas")).json()
    return next(one for one in listed if one["replica"] == name)


async def test_a_run_stands_where_its_slowest_fragment_stands(api: httpx.AsyncClient) -> None:
    assert (await report(api, round_of(0, 1), round_of(1, 1), round_of(0, 2))).status_code == 204
    view = await run(api)
    assert (view["revision"], view["fragment_rounds"], view["committed_tokens"]) == (1, 3, 100)
    await report(api, round_of(1, 2))
    assert (await run(api))["revision"] == 2


async def test_a_run_stands_nowhere_before_all_its_fragments_are_known(
    api: httpx.AsyncClient,
) -> None:
    """Its other sync services may not have been heard: they would be taken for behind."""
    await report(api, round_of(0, 5, fragments=2))
    assert (await run(api))["revision"] == 0
    await report(api, round_of(1, 3, fragments=2))
    assert (await run(api))["revision"] == 3


async def test_the_last_fragment_counts_the_tokens_of_the_run(api: httpx.AsyncClient) -> None:
    excluded = round_of(0, 1, push("a", 1.0), push("b", 0.0), committed_tokens=100)
    await report(api, excluded, round_of(1, 1, committed_tokens=200))
    assert (await run(api))["committed_tokens"] == 200


async def test_a_report_that_comes_late_moves_nothing_back_and_a_restore_does(
    api: httpx.AsyncClient,
) -> None:
    await report(api, round_of(0, 3))
    await report(api, round_of(0, 2))
    assert (await run(api))["revision"] == 3
    before = await membership(api)
    await report(api, round_of(0, 1, committed_at=2000.0))
    assert (await run(api))["revision"] == 1
    after = await membership(api)
    assert after["runs"][0]["revision"] == 1
    assert after["version"] > before["version"], "sync services compare it with what they have"


async def test_who_goes_on_with_a_clock_set_back_is_heard(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is kept was told by the clock as it was before, an hour ahead."""
    monkeypatch.setattr(reports, "ROUNDS_KEPT", 2)
    await report(api, *(round_of(0, i, push("b", 1.0), committed_at=4600.0 + i) for i in (1, 2, 3)))
    await report(api, round_of(0, 4, push("a", 1.0)))
    view = await run(api)
    assert (view["revision"], view["committed_tokens"], view["fragment_rounds"]) == (4, 400, 4)
    assert (await replica(api, "a"))["taking_part"] is True
    await report(api, round_of(0, 3, push("b", 1.0), committed_at=4603.0))
    assert (await run(api))["revision"] == 4, "what is told again is known"


async def test_a_report_that_is_sent_again_counts_once(api: httpx.AsyncClient) -> None:
    bad = round_of(0, 1, push("a", 1.0), push("b", 0.0))
    for _ in range(2):
        await report(api, bad, bad)
    view = await run(api)
    assert (view["fragment_rounds"], view["exclusions"]) == (1, 1)
    assert (await replica(api, "b"))["exclusions"] == 1
    assert len((await api.get("/v1/runs/r/rounds")).json()) == 1


async def test_where_a_fragment_stands_is_no_round_where_it_is_known(
    api: httpx.AsyncClient,
) -> None:
    await report(api, round_of(0, 3, push("a", 1.0)))
    stands = round_of(0, 3, kind="parameters", closed_by="offer")
    for minute in range(1, 4):  # each start of a sync service tells it
        await report(api, {**stands, "committed_at": 1003.0 + minute})
    assert len((await api.get("/v1/runs/r/rounds")).json()) == 1
    await report(api, {**stands, "revision": 4, "committed_tokens": 400, "committed_at": 1007.0})
    assert (await run(api))["revision"] == 4, "its last round was not heard of"


async def test_taking_part_means_having_pushed_to_the_last_round(api: httpx.AsyncClient) -> None:
    assert (await run(api))["replicas_taking_part"] == 0
    await report(api, round_of(0, 1, push("a", 0.5), push("b", 0.5)))
    assert (await run(api))["replicas_taking_part"] == 2
    await report(api, round_of(0, 2, push("a", 1.0)))
    assert (await replica(api, "a"))["taking_part"] is True
    assert (await replica(api, "b"))["taking_part"] is False
    assert (await run(api))["replicas_alive"] == 2


async def test_where_each_push_is_a_round_who_pushed_takes_part_until_it_is_gone(
    api: httpx.AsyncClient,
) -> None:
    await api.post("/v1/runs", json={"name": "asynchronous", "settings": {"asynchronous": True}})
    for name in ("a", "b"):
        await api.post("/v1/runs/asynchronous/replicas", json={"replica": name})

    async def after(revision: int, one: dict[str, Any]) -> dict[str, bool]:
        rounds = [round_of(0, revision, one, closed_by="push")]
        await api.post("/v1/runs/asynchronous/reports", json={"rounds": rounds})
        listed = (await api.get("/v1/runs/asynchronous/replicas")).json()
        return {one["replica"]: one["taking_part"] for one in listed}

    assert await after(1, push("a", 1.0)) == {"a": True, "b": False}
    assert await after(2, push("b", 1.0)) == {"a": True, "b": True}
    await api.post("/v1/runs/asynchronous/replicas/b/kick")
    assert await after(3, push("a", 1.0)) == {"a": True, "b": False}
    await api.post("/v1/runs/asynchronous/replicas", json={"replica": "a"})
    assert await after(4, push("b", 1.0)) == {"a": False, "b": False}, "it is a new life"


async def test_a_new_life_takes_part_only_after_its_own_push(api: httpx.AsyncClient) -> None:
    await report(api, round_of(0, 1, push("a", 1.0, z=1.0)))
    await api.post("/v1/runs/r/replicas", json={"replica": "a"})
    seen = await replica(api, "a")
    assert (seen["taking_part"], seen["weight"], seen["z"]) == (False, None, None)
    await report(api, round_of(1, 1, push("b", 1.0)))
    assert (await replica(api, "a"))["taking_part"] is False
    await report(api, round_of(0, 2, push("a", 1.0, incarnation=2)))
    assert (await replica(api, "a"))["taking_part"] is True


async def test_weight_is_the_mean_and_z_the_largest_over_fragments(api: httpx.AsyncClient) -> None:
    await report(
        api,
        round_of(0, 1, push("a", 0.2, z=1.0), push("b", 0.8)),
        round_of(1, 1, push("a", 0.6, z=2.5), push("b", 0.4)),
    )
    seen = await replica(api, "a")
    assert seen["weight"] == pytest.approx(0.4)
    assert seen["z"] == 2.5
    assert (await replica(api, "b"))["z"] is None


async def test_an_offer_is_no_round_and_gradient_rounds_are(api: httpx.AsyncClient) -> None:
    await report(api, round_of(0, 0, push("a", 1.0), kind="parameters", closed_by="offer"))
    assert (await run(api))["fragment_rounds"] == 0
    step = {"kind": "gradient", "committed_tokens": 7}
    await report(api, *(round_of(0, 0, gradient_step=i, **step) for i in (1, 2)))
    view = await run(api)
    assert (view["fragment_rounds"], view["revision"], view["committed_tokens"]) == (2, 0, 7)


async def test_only_the_newest_rounds_are_kept(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "ROUNDS_KEPT", 5)
    await report(api, *(round_of(0, i) for i in range(1, 13)))
    kept = [one["revision"] for one in (await api.get("/v1/runs/r/rounds")).json()]
    assert kept == [8, 9, 10, 11, 12]
    newest = (await api.get("/v1/runs/r/rounds?limit=2")).json()
    assert [one["revision"] for one in newest] == [11, 12]
    assert (await run(api))["fragment_rounds"] == 12
    await report(api, round_of(0, 12), round_of(0, 7), round_of(1, 7))
    assert (await run(api))["fragment_rounds"] == 13, "two of them were told again"


async def test_a_report_that_does_not_fit_changes_nothing(api: httpx.AsyncClient) -> None:
    event = {"kind": "Not A Kind", "message": "x"}
    for answer in (
        await report(api, round_of(0, 1), round_of(0, -1)),
        await report(api, round_of(0, 1), events=[event]),
        await report(api, round_of(0, 1, committed_tokens=1 << 64)),
    ):
        assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST")
    assert (await run(api))["fragment_rounds"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"revision": 1 << 62},
        {"committed_tokens": 1 << 62},
        {"gradient_step": 1 << 53},
        {"fragment": 1 << 40},
        {"seconds": -1.0},
        {"committed_at": Clock().now + 2 * 86_400.0},
        {"contributions": [push("a", 1.0, tokens=1 << 53)]},
        {"contributions": [push("a", 1.0, inner_steps=-1)]},
        {"contributions": [push("a" * 64, 1.0)]},
    ],
)
async def test_a_report_of_what_cannot_be_moves_nothing(
    api: httpx.AsyncClient, wrong: dict[str, Any]
) -> None:
    refused = await report(api, round_of(0, 1), {**round_of(0, 2), **wrong})
    assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_REQUEST")
    assert refused.json()["detail"].startswith(f"rounds.1.{next(iter(wrong))}")
    assert (await run(api))["fragment_rounds"] == 0
    assert (await report(api, round_of(0, 1, committed_at=1.0))).status_code == 204
    assert (await run(api))["revision"] == 1


async def test_what_is_reported_after_the_end_still_counts(api: httpx.AsyncClient) -> None:
    await report(api, round_of(0, 1, push("a", 1.0)))
    await api.post("/v1/runs/r/finish")
    await report(api, round_of(0, 2, push("a", 1.0)))
    view = await run(api)
    assert (view["state"], view["fragment_rounds"], view["committed_tokens"]) == (
        "finished",
        2,
        200,
    )


async def test_an_unknown_key_is_refused_at_every_depth(api: httpx.AsyncClient) -> None:
    for answer, where in (
        (await report(api, round_of(0, 1, more=1)), "rounds.0.more"),
        (await report(api, round_of(0, 1, push("a", 1.0, more=1))), "contributions.0.more"),
        (await beat(api, progress={"more": 1}), "progress.more"),
        (await beat(api, points=[{"tokens": 1, "loss": 1.0, "more": 1}]), "points.0.more"),
    ):
        assert answer.status_code == 422 and where in answer.json()["detail"]
    newer = {**round_of(0, 1, push("a", 1.0, more=1)), "more": 1}
    assert RoundReport.model_validate(newer).contributions[0].replica == "a"


async def test_curves_are_kept_apart_and_thinned_evenly(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "POINTS_MAX", 100)
    for start in range(0, 1000, 50):
        curve = [{"tokens": 10 * i, "loss": 1.0} for i in range(start, start + 50)]
        merged = [{"kind": "merged", "tokens": start, "loss": 2.0}]
        body = {"incarnation": 1, "points": curve + merged}
        assert (await api.post("/v1/runs/r/replicas/a/heartbeat", json=body)).status_code == 200
    by_kind = {one["kind"]: one for one in (await api.get("/v1/runs/r/metrics")).json()}
    train = by_kind["train"]["tokens"]
    assert len(by_kind["merged"]["tokens"]) == 20
    assert len(train) <= 100 and train == sorted(train)
    assert (train[0], train[-1]) == (0, 9990)
    assert max(b - a for a, b in zip(train, train[1:], strict=False)) <= 2 * 9990 / 49
    short = (await api.get("/v1/runs/r/metrics?points=5")).json()
    assert all(len(one["tokens"]) == len(one["loss"]) == len(one["time"]) <= 5 for one in short)


async def test_numbers_that_are_not_finite_do_no_harm(api: httpx.AsyncClient) -> None:
    async def beat(rest: bytes) -> httpx.Response:
        content = b'{"incarnation":1,' + rest + b"}"
        headers = {"content-type": "application/json"}
        where = "/v1/runs/r/replicas/a/heartbeat"
        return await api.post(where, content=content, headers=headers)

    both = await beat(b'"progress":{"loss":NaN},"points":[{"tokens":1,"loss":NaN}]')
    assert both.status_code == 200
    assert (await replica(api, "a"))["progress"]["loss"] is None
    assert (await api.get("/v1/runs/r/metrics")).json() == []
    refused = await beat(b'"progress":{"wall_s":Infinity}')
    assert refused.status_code == 422 and "wall_s" in refused.json()["detail"]
    huge = await beat(b'"points":[{"tokens":%d,"loss":1.0}]' % (1 << 70))
    assert huge.status_code == 422 and "tokens" in huge.json()["detail"]


async def test_events_are_in_order_bounded_and_filtered(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.post("/v1/runs", json={"name": "other"})
    await report(api, events=[{"kind": "push.excluded", "message": "why", "replica": "a"}])
    everything = (await api.get("/v1/events")).json()
    assert [one["id"] for one in everything] == sorted(one["id"] for one in everything)
    last = everything[-1]
    assert (last["run"], last["replica"], last["message"]) == ("r", "a", "why")
    assert {one["run"] for one in (await api.get("/v1/events?run=other")).json()} == {"other"}
    later = (await api.get(f"/v1/events?after={last['id'] - 1}")).json()
    assert later == [last]
    assert len((await api.get("/v1/events?limit=2")).json()) == 2
    (excluded,) = (await api.get("/v1/events?kind=push.excluded&limit=1")).json()
    assert excluded["message"] == "why"
    assert (await api.get("/v1/events?kind=push.excluded&run=other")).json() == []
    assert (await api.get("/v1/events?kind=No+Kind")).status_code == 422
    monkeypatch.setattr(transaction, "EVENTS_KEPT", 3)
    await report(api, events=[{"kind": "x.y", "message": str(i)} for i in range(10)])
    assert [one["message"] for one in (await api.get("/v1/events")).json()] == ["7", "8", "9"]


async def test_of_old_events_a_runs_last_word_of_damage_is_kept(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is told anew: ``status`` and ``doctor`` know of it by that alone."""
    monkeypatch.setattr(transaction, "EVENTS_KEPT", 3)

    async def told(*events: tuple[str, str]) -> list[str]:
        await report(api, events=[{"kind": kind, "message": said} for kind, said in events])
        return [one["message"] for one in (await api.get("/v1/events")).json()]

    noise = [("x.y", str(number)) for number in range(10)]
    damage = [("run.damaged", said) for said in ("first", "second", "third")]
    assert await told(*damage[:2], *noise) == ["second", "7", "8", "9"]
    assert await told(*noise) == ["second", "7", "8", "9"], "however long ago"
    assert await told(damage[2]) == ["second", "8", "9", "third"]
    assert await told(*noise) == ["third", "7", "8", "9"]


async def samples(api: httpx.AsyncClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = (await api.get("/metrics")).text
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


async def test_prometheus_sees_runs_and_those_who_are_there(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    progress = {"loss": 2.5, "tokens_per_second": 9.0, "exposed_sync_s": 1.5, "inner_step": 4}
    body = {"incarnation": 1, "progress": progress}
    await api.post("/v1/runs/r/replicas/a/heartbeat", json=body)
    await api.post("/v1/runs/r/replicas/b/drain")
    await report(api, round_of(0, 3, push("a", 1.0)))
    seen = await samples(api)
    of_a = (("replica", "a"), ("run", "r"))
    of_run = (("run", "r"),)
    assert seen["syncline_replica_loss", of_a] == 2.5
    assert seen["syncline_replica_tokens_per_second", of_a] == 9.0
    assert seen["syncline_replica_exposed_sync_seconds", of_a] == 1.5
    assert seen["syncline_replica_inner_steps", of_a] == 4
    assert seen["syncline_run_committed_tokens", of_run] == 300
    assert seen["syncline_run_revision", of_run] == 3
    assert seen["syncline_leases_lost_total", of_run] == 0
    assert seen["syncline_runs", (("state", "running"),)] == 1
    counts = {one: seen["syncline_replicas", (("run", "r"), ("state", one))] for one in STATES}
    assert counts == {"alive": 2, "taking_part": 1, "draining": 1}
    assert seen["syncline_events_total", (("kind", "replica.joined"),)] == 2
    labels = (("method", "POST"), ("route", "/v1/runs/{run}/reports"), ("status", "204"))
    assert seen["syncline_http_request_seconds_count", labels] == 1
    assert any(name == "syncline_build_info" for name, _ in seen)
    await api.delete("/v1/runs/r/replicas/a?incarnation=1")
    assert ("syncline_replica_loss", of_a) not in await samples(api)


STATES = ("alive", "taking_part", "draining")


async def test_a_lost_lease_is_counted(api: httpx.AsyncClient, state: State, clock: Clock) -> None:
    for _ in range(11):
        clock.now += 1
        await state.review_leases()
    assert (await samples(api))["syncline_leases_lost_total", (("run", "r"),)] == 2
    assert (await run(api))["replicas_alive"] == 0
