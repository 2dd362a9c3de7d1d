"""The line to the control plane: reports that it cannot take are dropped, never sent for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from syncline_proto.errors import Forbidden
from syncline_proto.names import CUT
from syncline_proto.reports import EventIn, FragmentData, Reports, RoundReport, Settled
from syncline_proto.rest import WHY_CHARACTERS_MAX, Membership
from syncline_proto.stretches import Stretch
from syncline_sync import calling, control, report_queue
from syncline_sync.report_queue import ReportQueue
from syncline_testing.linked import link_to, running

Answer = Callable[[httpx.Request, asyncio.Event], Awaitable[httpx.Response]]


def event(number: int) -> EventIn:
    return EventIn(kind="test", message=str(number))


def test_reports_that_the_control_plane_fails_at_do_not_hold_up_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    asked: list[str] = []
    arrived = asyncio.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/reports"):
            raise httpx.ConnectError("away")
        asked.append(request.url.path)
        if "bad" in request.url.path:
            return httpx.Response(500)
        arrived.set()
        return httpx.Response(204)

    async def scenario() -> None:
        reports = ReportQueue()
        reports.put("bad", event(1))
        reports.put("good", event(2))
        async with link_to(answer, reports=reports) as link, running(link):
            await asyncio.wait_for(arrived.wait(), 60)

    asyncio.run(scenario())
    assert asked == ["/v1/runs/bad/reports"] * control.REPORT_TRIES + ["/v1/runs/good/reports"]


def test_a_full_queue_drops_the_oldest_and_tells_once_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_queue, "QUEUE_MAX", 3)

    async def scenario() -> None:
        reports = ReportQueue()
        for number in range(5):
            reports.put("run", event(number))
        assert reports.dropped == 2
        _, batch = await reports.batch()
        assert batch == [event(2), event(3), event(4)]
        assert reports.dropped == 2, "nothing has been taken yet"
        reports.taken()
        reports.taken()
        assert reports.dropped == 0

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(line["event"], line.get("count")) for line in logs] == [
        ("too many reports wait; dropping the oldest", None),
        ("reports were dropped", 2),
    ]


def test_a_batch_that_comes_back_finds_the_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_queue, "QUEUE_MAX", 3)

    async def scenario() -> None:
        reports = ReportQueue()
        for number in range(3):
            reports.put("run", event(number))
        run, batch = await reports.batch()
        for number in (3, 4):
            reports.put("run", event(number))
        reports.put_back(run, batch)
        assert (len(reports), reports.dropped) == (3, 2)
        assert (await reports.batch())[1] == [event(2), event(3), event(4)]
        for number in range(3):
            reports.put("run", event(number))
        reports.put_back(run, batch)
        assert (len(reports), reports.dropped) == (3, 5)
        assert (await reports.batch())[1] == [event(0), event(1), event(2)]

    asyncio.run(scenario())


def test_where_a_fragment_stands_is_told_without_its_data_where_that_is_too_much() -> None:
    asked: list[list[RoundReport]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":  # it says that it ends, too
            return httpx.Response(204)
        asked.append(Reports.model_validate_json(request.content).rounds)
        return httpx.Response(413 if any(one.data for one in asked[-1]) else 204)

    async def scenario() -> None:
        reports = ReportQueue()
        for number in range(2):
            reports.put("run", standing(number))
        async with link_to(answer, reports=reports) as link:
            await link.send_last(60)
        assert (len(reports), reports.settled) == (0, 2)

    asyncio.run(scenario())
    told = [one for batch in asked for one in batch if one.data is None]
    assert told == [standing(number).model_copy(update={"data": None}) for number in range(2)]
    assert len(asked) == 5, "both, each, and each without"


def test_nothing_is_settled_by_a_round_that_was_told_without_its_data() -> None:
    """Where its fragment stands tells of the data; until then it would be given out again."""
    told: list[tuple[int, list[int]]] = []
    anew: list[str] = []
    push = {"replica": "a", "incarnation": 1, "verdict": "accepted", "weight": 1.0}
    push["data"] = [(0, 0, 9)]
    made = standing(0).model_copy(update={"data": None})
    round_ = RoundReport.model_validate(made.model_dump() | {"contributions": [push]})

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            return httpx.Response(204)
        body = Reports.model_validate_json(request.content)
        if any(part.data for one in body.rounds for part in one.contributions):
            return httpx.Response(413)
        told.append((len(body.rounds), [one.membership for one in body.settled]))
        return httpx.Response(204)

    async def scenario() -> None:
        reports = ReportQueue()
        reports.put("run", round_)
        reports.put("run", Settled(fragment=0, membership=5))
        async with link_to(answer, reports=reports, tell_anew=anew.append) as link:
            await link.send_last(60)

    asyncio.run(scenario())
    assert anew == ["run"]
    assert told == [(1, []), (0, [0])]


def standing(number: int) -> RoundReport:
    return RoundReport(
        fragment=number,
        fragment_name="x",
        kind="parameters",
        revision=7,
        committed_at=1.0,
        seconds=0.0,
        committed_tokens=70,
        data=FragmentData(trained=[Stretch(0, 0, 9)]),
    )


def test_what_was_dropped_is_told_when_something_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_queue, "QUEUE_MAX", 1)
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    answers = iter([httpx.Response(503), httpx.Response(400), httpx.Response(204)])
    told: list[tuple[int, int]] = []

    async def scenario() -> None:
        reports = ReportQueue()

        def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "DELETE":  # it says that it ends, too
                return httpx.Response(204)
            given = next(answers)
            told.append((given.status_code, sum("were dropped" in line["event"] for line in logs)))
            return given

        async with link_to(answer, reports=reports) as link:
            for number in range(3):
                reports.put("run", event(number))
            assert reports.settled == 0
            await link.send_last(60)
            assert (reports.dropped, reports.settled) == (3, 3), "one was refused"
            reports.put("run", event(3))
            await link.send_last(60)
            assert (reports.dropped, reports.settled) == (0, 4)

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert told == [(503, 0), (400, 0), (204, 0)]
    assert [line["count"] for line in logs if "were dropped" in line["event"]] == [3]


def test_nothing_counts_as_settled_before_the_run_whose_reports_were_dropped_is_told_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said of all rounds before; who has not heard of one would give its data out again."""
    monkeypatch.setattr(report_queue, "QUEUE_MAX", 6)
    said: list[tuple[str, int]] = []
    word = Settled(fragment=0, membership=5)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method != "DELETE":
            run = request.url.path.split("/")[3]
            body = Reports.model_validate_json(request.content)
            said.extend((one.message, 0) for one in body.events if "stands" in one.message)
            said.extend((run, one.membership) for one in body.settled)
        return httpx.Response(204)

    async def scenario() -> None:
        reports = ReportQueue()

        def tell_anew(run: str) -> None:
            reports.put(run, EventIn(kind="test", message=f"{run} stands"))
            reports.put(run, word)

        async with link_to(answer, reports=reports, tell_anew=tell_anew) as link:
            for what in (event(0), word, *(event(number) for number in range(5)), word):
                reports.put("run", what)
            await link.send_last(20)
            assert said == [("run", 0), ("run stands", 0), ("run", 5)]
            said.clear()
            reports.put("run", word)
            _, batch = await reports.batch()
            for number in range(6):
                reports.put("other", event(number))
            reports.put_back("run", [event(0), *batch])  # there is room for neither
            reports.put("run", word)  # one of the other's goes for it
            await link.send_last(20)
            for run in ("run", "other"):
                assert said.index((f"{run} stands", 0)) < said.index((run, 5))
            assert len(said) == 5, "the word that was dropped, the one that came too soon"

    asyncio.run(scenario())


def test_where_more_fragments_stand_than_reports_may_wait_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not while so much waits that others would be dropped for it."""
    monkeypatch.setattr(report_queue, "QUEUE_MAX", 4)
    monkeypatch.setattr(report_queue, "BATCH_MAX", 1)
    told: list[str] = []
    fragments = 9

    async def scenario() -> None:
        reports = ReportQueue(lambda: fragments)

        def tell_anew(run: str) -> None:
            told.append(run)
            for number in range(fragments):
                reports.put(run, standing(number))
                reports.put(run, Settled(fragment=number, membership=5))

        async with link_to(
            lambda _: httpx.Response(204), reports=reports, tell_anew=tell_anew
        ) as link:
            for number in range(4 + 2 * fragments + 1):
                reports.put(f"run-{number % 2}", event(number))
            assert reports.dropped == 1
            await link.send_last(20)
            assert (len(reports), reports.dropped) == (0, 0)

    asyncio.run(scenario())
    assert told == ["run-0"]


@pytest.mark.parametrize(
    ("why", "refusal", "told"),
    [
        ("", 204, [None]),
        ("The disk\r\nrefuses.\x1b[31m", 204, ["The disk refuses. [31m"]),
        ("word " * 999, 204, [("word " * (WHY_CHARACTERS_MAX // 5)).strip() + CUT]),
        ("The disk refuses.", 414, ["The disk refuses.", None]),
        ("The disk refuses.", 503, ["The disk refuses."]),
        ("", 404, [None]),
    ],
)
def test_that_it_ends_is_told_with_its_reason_in_one_line_or_else_without(
    why: str, refusal: int, told: list[str | None]
) -> None:
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("DELETE", "/v1/sync-services/sync-0")
        asked.append(request.url.params.get("why"))
        return httpx.Response(refusal)

    async def scenario() -> None:
        async with link_to(answer) as link:
            await link.send_last(60, why)

    asyncio.run(scenario())
    assert asked == told


def sent_at_the_end(answer: Answer, *names: str) -> list[str]:
    """Queue one event for each run, let the link start to send, end it, and send the last.

    Returns what waits in the queue after that.
    """

    async def scenario() -> list[str]:
        started = asyncio.Event()

        async def handle(request: httpx.Request) -> httpx.Response:
            if not request.url.path.endswith("/reports"):
                raise httpx.ConnectError("away")
            return await answer(request, started)

        reports = ReportQueue()
        async with link_to(handle, reports=reports) as link:
            async with running(link):
                for name in names:
                    reports.put(name, event(1))
                await asyncio.wait_for(started.wait(), 60)
            await link.send_last(0.5)
        left: list[str] = []
        while reports:
            left.append((await reports.batch())[0])
        return left

    return asyncio.run(scenario())


def test_what_is_queued_at_the_end_is_sent_and_so_is_what_was_under_way() -> None:
    asked: list[str] = []

    async def answer(request: httpx.Request, started: asyncio.Event) -> httpx.Response:
        asked.append(request.url.path)
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()  # until the end cuts this call
        return httpx.Response(204)

    assert sent_at_the_end(answer, "first", "second") == []
    paths = ["/v1/runs/first/reports", "/v1/runs/second/reports"]
    assert asked == [paths[0], *paths]


@pytest.mark.parametrize("silent", [True, False])
def test_a_control_plane_that_is_away_does_not_hold_up_the_end(silent: bool) -> None:
    async def answer(request: httpx.Request, started: asyncio.Event) -> httpx.Response:
        started.set()
        if silent:
            await asyncio.Event().wait()
        raise httpx.ConnectError("away")

    with capture_logs() as logs:
        assert sent_at_the_end(answer, "first", "second") == ["first", "second"]
    assert [line["count"] for line in logs if "last reports" in line["event"]] == [2]


def test_a_control_plane_that_wants_another_token_ends_every_loop() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        return httpx.Response(401)

    async def scenario() -> None:
        async with link_to(refuse) as link:
            with pytest.raises(Forbidden):
                await link.run()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_a_word_of_another_control_plane_counts_though_it_has_the_number_of_the_last(
    tmp_path: Path,
) -> None:
    """A new database counts from 1: what it does not know it must be told."""
    told, heard, enough = iter(["one", "one", "two"]), list[str](), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            return httpx.Response(204)
        if (instance := next(told, None)) is None:
            await asyncio.sleep(60)
        said = Membership(version=3, runs=[], instance=instance or "")
        return httpx.Response(200, content=said.model_dump_json())

    async def adopt(membership: Membership) -> None:
        heard.append(membership.instance)
        if len(heard) == 2:
            enough.set()

    async def scenario() -> None:
        async with link_to(answer, adopt, snapshot=tmp_path / "said.json") as link, running(link):
            await asyncio.wait_for(enough.wait(), 20)

    asyncio.run(scenario())
    assert heard == ["one", "two"]
