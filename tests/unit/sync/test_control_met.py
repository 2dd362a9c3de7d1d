"""Who answers where the control plane should be: a stranger, nobody yet, or itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from syncline_proto.errors import ConfigError
from syncline_proto.rest import Membership
from syncline_sync import calling, control
from syncline_sync.control import ControlLink
from syncline_sync.files import SEAL
from syncline_sync.report_queue import ReportQueue
from syncline_testing.linked import link_to, made


def refusal(status: int, code: str) -> httpx.Response:
    body = {"title": "t", "status": status, "detail": "d", "code": code}
    return httpx.Response(status, json=body)


STRANGE: list[httpx.Response | Exception] = [
    httpx.Response(200, text="<html>"),
    httpx.Response(301, headers={"location": "/"}),
    httpx.Response(404, text="<html>"),
    httpx.Response(500, text="<html>"),
    httpx.Response(404, json={"error": "no such page"}),
    refusal(404, "INVALID_REQUEST"),  # a control plane itself, asked below another path
    refusal(405, "INVALID_REQUEST"),
    httpx.RemoteProtocolError("illegal status line"),
]
PASSING: list[httpx.Response | Exception] = [
    httpx.ConnectError("refused"),
    httpx.RemoteProtocolError("Server disconnected without sending a response."),
    httpx.ReadTimeout("slow"),
    httpx.Response(503, text="<html>"),
    httpx.Response(502, text="<html>"),
    httpx.Response(429, text="later"),
    refusal(500, "SYNCLINE"),
    refusal(503, "UNREACHABLE"),
]


async def follow(link: ControlLink, heard: asyncio.Event) -> None:
    """Run the link until that was heard; its own end before is raised."""
    running = asyncio.create_task(link.run())
    waiting = asyncio.create_task(heard.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
    finally:
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)


def met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response | Exception
) -> list[int]:
    """Follow a server that gives these answers when asked for memberships; what was adopted.

    It takes a hello from its first membership on.
    """
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    adopted: list[int] = []
    left = iter(answers)
    has_come = False

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal has_come
        if request.method != "GET":
            if not has_come:
                raise httpx.ConnectError("not yet")
            return httpx.Response(200, json={"lease_s": 10.0})
        given = next(left)
        if isinstance(given, Exception):
            raise given
        has_come = has_come or given.is_success
        return given

    async def scenario() -> None:
        last = asyncio.Event()

        async def adopt(membership: Membership) -> None:
            adopted.append(membership.version)
            if membership.version == 9:
                last.set()
                await asyncio.Event().wait()

        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport) as client:
            snapshot = tmp_path / "membership.json"
            link = made(client, "http://control", adopt, ReportQueue(), snapshot)
            await link.adopt_snapshot()
            await follow(link, last)

    asyncio.run(scenario())
    return adopted


def word(version: int) -> httpx.Response:
    return httpx.Response(200, content=Membership(version=version, runs=[]).model_dump_json())


def test_who_was_refused_hears_all_of_the_same_word_again_once_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was passed over meanwhile as another's may be its own by now."""
    monkeypatch.setattr(control, "HELLO_S", 0.01)
    heard, adopted, refusals = asyncio.Event(), list[int](), list[int]()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return word(7)
        return httpx.Response(refusals.pop() if refusals else 200, json={"lease_s": 10.0})

    async def scenario() -> None:
        async def adopt(membership: Membership) -> None:
            assert not link.is_refused
            adopted.append(membership.version)
            if adopted == [7]:
                refusals.extend((409, 409))
            else:
                heard.set()

        snapshot = tmp_path / "membership.json"
        async with link_to(answer, adopt, snapshot=snapshot) as link:
            await asyncio.wait_for(follow(link, heard), 60)

    asyncio.run(scenario())
    assert adopted == [7, 7]


WAITING, CONNECTED = "waiting for the control plane", "connected to the control plane"
AWAY = "control plane away; going on with the last membership"


def test_what_is_said_of_it_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no last membership before the first, and nobody is met who has not been heard."""
    gone = httpx.ConnectError("refused")
    with capture_logs() as logs:
        met(tmp_path, monkeypatch, gone, gone, word(1), gone, gone, word(9))
    said = [line["event"] for line in logs]
    assert list(dict.fromkeys(said)) == [WAITING, CONNECTED, AWAY]
    assert said.count(WAITING) == 1 and said.count(CONNECTED) > 1, "it came back"
    assert {line["url"] for line in logs} == {"http://control"}


def test_after_a_restart_it_goes_on_with_what_it_knew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "membership.json").write_bytes(SEAL.close(word(1).text))
    with capture_logs() as logs:
        met(tmp_path, monkeypatch, httpx.ConnectError("refused"), word(9))
    assert logs[0]["event"] == AWAY
    assert WAITING not in {line["event"] for line in logs}


@pytest.mark.parametrize("strange", STRANGE, ids=str)
def test_who_answers_first_and_is_no_control_plane_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strange: httpx.Response | Exception
) -> None:
    with capture_logs() as logs, pytest.raises(ConfigError, match="is not a Syncline control"):
        met(tmp_path, monkeypatch, httpx.ConnectError("not yet"), strange)
    assert {line["event"] for line in logs} == {WAITING}
    assert {line["why"] for line in logs if "why" in line} == {"not yet"}, "and no raw answer"


def test_what_a_stranger_answered_is_said_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "it answered 404, without the reason that a control plane gives. Check the address"
    with pytest.raises(ConfigError, match=why):
        met(tmp_path, monkeypatch, httpx.Response(404, text="<html>"))


@pytest.mark.parametrize("passing", PASSING, ids=str)
def test_who_asks_for_patience_has_it_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passing: httpx.Response | Exception
) -> None:
    assert met(tmp_path, monkeypatch, passing, passing, word(9)) == [9]


def test_a_control_plane_that_has_been_heard_is_waited_for_whatever_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy's own page among it, which calls itself a success."""
    assert met(tmp_path, monkeypatch, word(1), *STRANGE, word(9)) == [1, 9]


def test_it_has_been_heard_over_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "membership.json").write_bytes(SEAL.close(word(1).text))
    assert met(tmp_path, monkeypatch, *STRANGE, word(9)) == [1, 9]


def test_a_forwarder_with_nobody_behind_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a connection and hangs up; then the control plane starts and is reached there."""
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    asked: list[bytes] = []

    async def scenario() -> None:
        arrived = asyncio.Event()

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            if len(asked) > 5:
                answer = word(9).content
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer
                )
            writer.close()

        async def adopt(_: Membership) -> None:
            arrived.set()

        server = await asyncio.start_server(forward, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, httpx.AsyncClient(trust_env=False) as client:
            link = made(client, url, adopt, ReportQueue(), tmp_path / "membership.json")
            await follow(link, arrived)
            assert arrived.is_set()

    asyncio.run(scenario())
