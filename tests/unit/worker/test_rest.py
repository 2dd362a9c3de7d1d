"""Whoever answers instead of a control plane is told apart, at once and without repeating it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from syncline.control import ControlClient
from syncline.launch import client
from syncline.launch.client import OperatorClient
from syncline.link import Link
from syncline_proto.errors import ConfigError, ReplicaUnknown, SynclineError, Unreachable
from syncline_proto.names import CUT
from syncline_proto.rest import WHY_CHARACTERS_MAX, Event
from syncline_proto.settings import TimeoutSettings

SECRET = "what-the-stranger-says"
PROBLEM = b'{"title":"t","status":404,"detail":"no such replica","code":"REPLICA_UNKNOWN"}'


def http(status: str, body: bytes, kind: str = "text/html") -> bytes:
    heads = [f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([f"HTTP/1.1 {status}", *heads, "", ""]).encode() + body


HTML = f"<h1>{SECRET}</h1>".encode()
STRANGERS = {
    "html": http("200 OK", HTML),
    "other json": http("200 OK", f'{{"name": "{SECRET}"}}'.encode(), "application/json"),
    "not found": http("404 Not Found", HTML),
    "other problem": http("404 Not Found", f'{{"detail": "{SECRET}"}}'.encode()),
    "redirect": http("302 Found", b"").replace(b"\r\n", b"\r\nLocation: /login\r\n", 1),
    "broken": http("500 Oh", HTML),
    "binary": http("200 OK", b"\xff\xfe" * 9),
    "hangs up": b"",
    "another protocol": f"SSH-2.0-{SECRET}\r\n".encode(),
    "cut short": http("200 OK", HTML)[:-4],
    "wrong packing": http("200 OK", HTML).replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1),
}


@contextmanager
def answering(*answers: bytes, asked: list[bytes] | None = None) -> Iterator[str]:
    """A server that gives these answers, the last for ever, one for each connection.

    The first line of each request goes to ``asked``.
    """
    server = socket.create_server(("127.0.0.1", 0))
    left = list(answers)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                request = connection.recv(65536)
                if asked is not None:
                    asked.append(request.partition(b"\r\n")[0])
                connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.mark.parametrize("answer", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_is_a_wrong_address_for_replica_and_operator(answer: bytes) -> None:
    with answering(answer) as url:
        replica = ControlClient(url, None, 5.0)
        try:
            with pytest.raises(ConfigError) as one, OperatorClient(url) as operator:
                operator.runs()
            with pytest.raises(ConfigError) as two:
                replica.run("r")
        finally:
            replica.close()
    for error in (one.value, two.value):
        assert error.exit_code == 10
        assert error.message.startswith(f"{url} is not a Syncline control plane of this version")
        assert "Check the address" in error.message and "problem" not in error.message
        assert SECRET not in error.message


def test_a_stranger_has_no_stream_of_events_either() -> None:
    with answering(STRANGERS["html"]) as url, OperatorClient(url) as operator:
        with pytest.raises(ConfigError, match="no stream of events"):
            next(operator.follow(None, 0))
        assert operator.server_time() is None


def test_a_stream_that_opened_ends_an_absence_although_nothing_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "RECONNECT_S", 0.5)  # less than between two attempts
    kind = "text/event-stream"
    event = Event(id=7, time=0.0, run=None, replica=None, kind="k", message="It is back.")
    away, quiet = http("503 Service Unavailable", HTML), http("200 OK", b": alive\n\n", kind)
    news = http("200 OK", f"data: {event.model_dump_json()}\n\n".encode(), kind)
    with answering(away, quiet, away, news) as url, OperatorClient(url) as operator:
        assert next(operator.follow(None, 0)) == event


def raised(answers: tuple[bytes, ...], calls: int = 1) -> SynclineError:
    with answering(*answers) as url:
        client = ControlClient(url, None, 5.0)
        try:
            for _ in range(calls - 1):
                with pytest.raises(SynclineError):
                    client.run("r")
            with pytest.raises(SynclineError) as error:
                client.run("r")
            return error.value
        finally:
            client.close()


def test_the_control_planes_own_words_come_back_as_its_error() -> None:
    error = raised((http("404 Not Found", PROBLEM, "application/problem+json"),))
    assert type(error) is ReplicaUnknown and error.message == "no such replica"


def test_a_gateway_before_an_absent_control_plane_may_be_asked_again() -> None:
    error = raised((http("503 Service Unavailable", HTML),))
    assert type(error) is Unreachable and SECRET not in error.message


def test_a_control_plane_that_was_there_and_hangs_up_is_away_and_no_stranger() -> None:
    assert type(raised((http("404 Not Found", PROBLEM), b""), calls=2)) is Unreachable


def left(why: str, *answers: bytes) -> list[str | None]:
    """Leave a run: with which words it was asked for."""
    asked: list[bytes] = []
    with answering(*answers, asked=asked) as url:
        client = ControlClient(url, None, 5.0)
        try:
            client.leave("r", "a", 3, why)
        finally:
            client.close()
    targets = [urlsplit(line.decode().split()[1]) for line in asked]
    assert {target.path for target in targets} == {"/v1/runs/r/replicas/a"}
    queries = [parse_qs(target.query, strict_parsing=True) for target in targets]
    assert all(query.pop("incarnation") == ["3"] for query in queries)
    return [query["why"][0] if query else None for query in queries]


GONE = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("why", "sent"),
    [
        ("", None),
        ("Another model.", "Another model."),
        ("Two\r\nlines,\x00 \x1b[31m\u2028and more\n", "Two lines, [31m and more"),
        ("what no \udcff UTF-8 can hold", "what no UTF-8 can hold"),
        ("é" * 9999, "é" * (WHY_CHARACTERS_MAX - 1) + CUT),
        ("five " * 99, ("five " * (WHY_CHARACTERS_MAX // 5)).strip() + CUT),
    ],
)
def test_why_a_replica_leaves_is_told_in_one_short_line(why: str, sent: str | None) -> None:
    assert left(why, GONE) == [sent]


@pytest.mark.parametrize(
    "refusal",
    [
        http("414 URI Too Long", HTML),
        http("422 Odd", PROBLEM.replace(b"REPLICA_UNKNOWN", b"INVALID_REQUEST")),
    ],
    ids=["a proxy's", "the control plane's"],
)
def test_a_lease_is_given_back_where_the_words_are_refused(refusal: bytes) -> None:
    assert left("A reason.", refusal, GONE) == ["A reason.", None]
    with pytest.raises(SynclineError):
        left("", refusal, GONE)


def test_what_no_header_and_no_socket_can_hold_is_refused_before_a_connection() -> None:
    for url, token in (("http://127.0.0.1:99999", None), ("http://127.0.0.1:1", "a\nb")):
        with pytest.raises(ConfigError):
            ControlClient(url, token, 1.0)
        with pytest.raises(ConfigError):
            OperatorClient(url, token)
    for address, token in (("sync-0:99999", None), ("127.0.0.1:1", "a\nb")):
        with pytest.raises(ConfigError):
            Link(address, TimeoutSettings(), token)


@pytest.mark.parametrize("name", ["../x", "", "a b", "A", "a/b", "a?b", ".", "x" * 64])
def test_a_name_that_can_be_none_is_told_before_anybody_is_asked(name: str) -> None:
    with OperatorClient("http://127.0.0.1:1") as operator:
        for act in (operator.kick, operator.drain):
            with pytest.raises(ConfigError, match="name of a run or replica"):
                act("run", name)


RUNS = http("200 OK", b"[]", "application/json")
NOT_READY = http("503 Not Ready", b"", "text/plain")


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_of_several_addresses_the_first_that_can_be_reached_is_asked_again() -> None:
    asked: list[bytes] = []
    with answering(RUNS, asked=asked) as url, OperatorClient(f"{nobody()},{url}") as operator:
        for _ in range(3):
            assert operator.runs() == []
    assert len(asked) == 3


@pytest.mark.parametrize("then", [b"", NOT_READY], ids=["hangs up", "not ready"])
def test_one_that_was_asked_and_is_away_is_not_asked_next(then: bytes) -> None:
    """The call itself is not made twice: who knows how far it came."""
    asked: list[bytes] = []
    with (
        answering(RUNS, then) as first,
        answering(RUNS, asked=asked) as second,
        OperatorClient(f"{first},{second}") as operator,
    ):
        assert operator.runs() == []
        with pytest.raises(Unreachable):
            operator.runs()
        assert not asked
        assert operator.runs() == []
        assert len(asked) == 1


def test_with_nobody_at_any_address_all_are_named() -> None:
    urls = f"{nobody()},{nobody()}"
    with OperatorClient(urls) as operator, pytest.raises(Unreachable, match=urls):
        operator.runs()
