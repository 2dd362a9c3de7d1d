"""Who comes in, how far, and what may be held up there: hosts, bodies, heads, lanes, streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from syncline_control import intake, parser, server, streams
from syncline_control import state as state_module
from syncline_control.app import create_app
from syncline_control.core.runs import Act
from syncline_control.operations import events, replicas, runs
from syncline_control.pulse import Pulse
from syncline_control.state import State
from syncline_control.transaction import Transaction
from syncline_proto.errors import Overloaded
from syncline_proto.rest import Heartbeat, ReplicaRegister, RunCreate
from syncline_testing.queries import queries_of

pytestmark = pytest.mark.anyio

LARGE = b" " * (100 << 10)
STREAM = "/v1/events/stream"


def client_of(app: Any, host: str = "localhost:8500") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}")


class Parts:
    """A body of many parts that knows how many were taken; it waits after the last for ever."""

    def __init__(self, *, ends: bool) -> None:
        self.taken = 0
        self._ends = ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(100):
            self.taken += 1
            yield b" " * 1000
        if not self._ends:
            await asyncio.Event().wait()


@pytest.mark.parametrize(("path", "status"), [("/v1/runs", 401), ("/healthz", 413), ("/", 413)])
async def test_no_body_is_read_of_a_stranger(state: State, path: str, status: int) -> None:
    body = Parts(ends=True)
    async with client_of(create_app(state, token="s3cret")) as api:
        answer = await api.post(path, content=body)
        assert (answer.status_code, body.taken) == (status, 0)
        assert answer.headers["content-type"] == "application/problem+json"


async def test_bodies_are_bounded_together_and_heartbeats_are_not_held_up(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = len(LARGE) - intake.SMALL_BYTES
    monkeypatch.setattr(intake, "BODIES_BYTES_MAX", counted)
    async with client_of(create_app(state)) as api:
        for _ in range(3):  # the last one gave back what it held
            assert (await api.post("/v1/runs", content=LARGE)).status_code == 422
        monkeypatch.setattr(intake, "BODIES_BYTES_MAX", counted - 1)
        refused = await api.post("/v1/runs", content=LARGE)
        assert (refused.status_code, refused.json()["code"]) == (429, "OVERLOADED")
        assert (await api.post("/v1/runs", json={"name": "r"})).status_code == 201


async def test_a_body_that_does_not_end_is_given_up(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "BODY_S", 0.1)
    async with client_of(create_app(state)) as api:
        answer = await api.post("/v1/runs", content=Parts(ends=False))
        assert (answer.status_code, answer.json()["code"]) == (408, "UNREACHABLE")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8500", 200), ("127.0.0.1:8500", 200), ("127.1.2.3", 200), ("[::1]:8500", 200)]
    + [("LOCALHOST", 200), ("evil.example", 403), ("evil.example:8500", 403), ("10.0.0.5", 403)]
    + [("localhost.evil.example", 403), ("[", 403), ("", 403), ("127.0.0.1.evil.example", 403)],
)
async def test_without_a_token_only_names_of_this_machine_lead_here(
    state: State, host: str, status: int
) -> None:
    headers = {"Host": host}
    async with client_of(create_app(state, only_here=True)) as api:
        for path in ("/v1/runs", "/", "/healthz"):
            assert (await api.get(path, headers=headers)).status_code == status
    async with client_of(create_app(state)) as api:
        assert (await api.get("/v1/runs", headers=headers)).status_code == 200


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    """Serve the app on connections of ours; yield the port."""
    config = uvicorn.Config(app, http=server.Connection, log_config=None, lifespan="off")
    ours = server.Server(config)
    with server.listen("127.0.0.1", 0) as sock:
        task = asyncio.create_task(ours.serve(sockets=[sock]))
        try:
            yield sock.getsockname()[1]
        finally:
            ours.should_exit = True
            await task


async def test_a_connection_without_a_whole_request_is_closed_and_an_idle_one_is_kept(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    async with serving(create_app(state)) as port:
        kept, to_kept = await asyncio.open_connection("127.0.0.1", port)
        to_kept.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await kept.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        for begun in (b"", b"GET /healthz HTTP/1.1\r\nHost:"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            assert await reader.read() == b""
            writer.close()
        to_kept.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await kept.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        to_kept.close()


@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
async def test_who_takes_nothing_of_an_answer_is_cut(
    state: State, monkeypatch: pytest.MonkeyPatch, connection: bytes
) -> None:
    monkeypatch.setattr(server, "TAKEN_S", 0.2)
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n"
    async with serving(create_app(state)) as port:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        # As much as the system holds, and then some that lies with us.
        writer.write((asked + b"\r\n") * 200 + asked + b"Connection: %s\r\n\r\n" % connection)
        try:
            with pytest.raises(ConnectionError):
                async with asyncio.timeout(30):
                    while True:
                        writer.write(b" ")
                        await writer.drain()
                        await asyncio.sleep(0.1)
        finally:
            writer.transport.abort()


async def test_who_takes_an_answer_in_time_has_all_of_it(state: State) -> None:
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n"
    async with serving(create_app(state)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((asked + b"\r\n") * 200 + asked + b"Connection: close\r\n\r\n")
        taken = await reader.read()
        assert taken.count(b"HTTP/1.1 200") == 201
        writer.close()


CHUNKED = (
    b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
TINY = b"1\r\n \r\n"
NEXT = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the connection is closed, in whichever way."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("token", [None, "s3cret"])
async def test_a_body_in_tiny_chunks_is_refused_whoever_sends_it(
    state: State, caplog: pytest.LogCaptureFixture, token: str | None
) -> None:
    async with serving(create_app(state, token=token)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED + b'f\r\n{"name":"tiny"}\r\n' + TINY * (2 * parser.CHUNKS_FREE) + NEXT)
        answer = await rest_of(reader)
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
        writer.close()
    assert await state.do(runs.newest, 10) == [], "refused, so not done either"
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_a_connection_is_closed_for_tiny_chunks_after_the_refusal(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(create_app(state, token="s3cret")) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 401")
        writer.write(TINY * (2 * parser.CHUNKS_FREE) + NEXT)
        assert await rest_of(reader) == b""
        writer.close()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_an_honest_body_in_chunks_is_taken(state: State) -> None:
    async def letters(name: bytes) -> AsyncIterator[bytes]:
        for letter in (b'{"name":"%s"}' % name).ljust(parser.CHUNKS_FREE):
            yield bytes([letter])

    async def pages(name: bytes) -> AsyncIterator[bytes]:
        yield b'{"name":"%s"}' % name
        for _ in range(4 * parser.CHUNKS_FREE):
            yield b" " * parser.CHUNK_BYTES

    headers = {"content-type": "application/json"}
    async with serving(create_app(state)) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as api:
            for content in (letters(b"a"), pages(b"b"), letters(b"c"), letters(b"d")):
                answer = await api.post("/v1/runs", content=content)
                assert answer.status_code == 201, answer.text


async def test_leases_go_before_everybody_else(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    await state.do(runs.create, RunCreate(name="r"))
    await state.do(replicas.register, "r", ReplicaRegister(replica="a"))
    monkeypatch.setattr(state_module, "PENDING_MAX", 3)
    held, order = threading.Event(), list[str]()

    def hold(_tx: Transaction) -> None:
        held.wait(60)

    def note(_tx: Transaction, who: str) -> None:
        order.append(who)

    first = asyncio.create_task(state.do(hold))
    await asyncio.sleep(0)
    others = [asyncio.create_task(state.do(note, "other")) for _ in range(3)]
    await asyncio.sleep(0)
    lease = asyncio.create_task(state.do_first(note, "lease"))
    beat = asyncio.create_task(Pulse(state).beat("r", "a", Heartbeat(incarnation=1)))
    with pytest.raises(Overloaded):
        await state.do(note, "too many")
    held.set()
    assert (await beat).replicas_alive == 1
    await asyncio.gather(first, lease, *others)
    assert order == ["lease", "other", "other", "other"]


async def test_what_is_new_is_read_once_for_all_streams_of_a_run(state: State) -> None:
    await state.do(runs.create, RunCreate(name="r"))
    following = streams.Streams(state)
    lines = [following.lines("r", after) for after in (0, 0, 0, 1, 1, 1)]
    for one in lines:
        await anext(one)
    for one in lines[:3]:
        assert "run.created" in await anext(one)
    waiting = [asyncio.ensure_future(anext(one)) for one in lines]
    for _ in range(3):  # those who wait have looked once more, and hear the bell, by then
        await state.do(replicas.listed, "r")
    with queries_of("events.message") as seen:
        await state.do(runs.act, "r", Act.PAUSE)
        told = await asyncio.gather(*waiting)
    assert len(set(told)) == 1 and "run.paused" in told[0]
    assert len(seen) == 1
    state.end_waits()
    for one in lines:
        assert [line async for line in one] == []


async def test_nobody_misses_what_happens_while_others_read(state: State) -> None:
    await state.do(runs.create, RunCreate(name="r"))
    following = streams.Streams(state)

    async def seen() -> list[str]:
        """The kinds of the first events that a stream tells, up to the last of them."""
        text = ""
        async for line in following.lines("r", 0):
            text += line
            if text.count("data:") == 1 + 20:
                return text.split("data:")
        raise AssertionError("the stream ended")

    readers = [asyncio.create_task(seen()) for _ in range(10)]
    for number in range(20):
        await state.do(runs.act, "r", Act.RESUME if number % 2 else Act.PAUSE)
    told = await asyncio.gather(*readers)
    assert all(one == told[0] for one in told)


async def test_who_follows_the_log_of_another_database_goes_on_with_what_is_new(
    state: State,
) -> None:
    await state.do(runs.create, RunCreate(name="r"))
    newest = await state.do(events.newest_id, "r")
    page = await state.do(events.page, "r", newest + 5_000, streams.PAGE)
    assert (page.events, page.more) == ([], False)
    await state.do(runs.act, "r", Act.PAUSE)
    page = await state.do(events.page, "r", page.upto, streams.PAGE)
    assert [event.kind for event in page.events] == ["run.paused"]


async def test_there_are_only_so_many_streams(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 1)
    app = create_app(state)
    async with client_of(app) as api:
        with app.state.streams.place():
            refused = await api.get(STREAM)
            assert (refused.status_code, refused.json()["code"]) == (429, "OVERLOADED")
        state.end_waits()  # so that the next one ends
        assert (await api.get(STREAM)).status_code == 200
        assert (await api.get(STREAM)).status_code == 200
