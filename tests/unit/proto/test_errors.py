"""Every error has one code, one exit code and one gRPC status, and comes back as itself."""

from __future__ import annotations

import inspect
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from syncline_proto import errors, status
from syncline_proto.errors import SynclineError

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, SynclineError)
]


class Failed(grpc.RpcError, grpc.Call):
    """A call that ended with a status, as grpc hands it to the caller."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Any = ()) -> None:
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailers

    def initial_metadata(self) -> Any:
        return ()

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return 0.0

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: Any) -> bool:
        return False


def test_codes_and_exit_codes_are_unique() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert len({kind.exit_code for kind in KINDS}) == len(KINDS)
    reserved = {0, 2, 130}
    assert all(kind.exit_code < 126 and kind.exit_code not in reserved for kind in KINDS)


def test_the_table_has_a_row_for_every_error_and_no_other() -> None:
    assert set(status.STATUS) == set(KINDS)


def test_the_drawn_tree_tells_the_truth() -> None:
    """The table in the module's docstring: class, code, exit code, retry."""
    drawn = re.findall(r"(\w+) {2,}([A-Z_]+) +(\d+) +(yes|no) ", errors.__doc__ or "")
    below = [kind for kind in KINDS if kind is not SynclineError]
    assert {(n, c, int(x), r == "yes") for n, c, x, r in drawn} == {
        (kind.__name__, kind.code, kind.exit_code, kind.retry) for kind in below
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_itself(kind: type[SynclineError]) -> None:
    assert type(errors.from_code(kind.code, "Why.")) is kind
    call = Failed(status.status_of(kind("Why.")), "Why.", ((status.CODE_TRAILER, kind.code),))
    back = status.from_rpc_error(call, "The sync service")
    assert type(back) is kind
    assert back.message == "Why."


def test_an_error_below_a_row_takes_the_row_above_it() -> None:
    class Special(errors.RevisionGone):
        pass

    assert status.status_of(Special("Gone.")) is status.STATUS[errors.RevisionGone]


def test_what_we_do_not_know_stays_readable() -> None:
    unknown = errors.from_code("FROM_THE_FUTURE", "Something new.")
    assert type(unknown) is SynclineError
    assert "FROM_THE_FUTURE" in unknown.message
    odd = status.from_rpc_error(Failed(grpc.StatusCode.INTERNAL, "boom"), "The sync service")
    assert type(odd) is SynclineError
    assert "boom" in odd.message


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED], ids=lambda c: c.name
)
def test_silence_is_worth_another_try(code: grpc.StatusCode) -> None:
    error = status.from_rpc_error(Failed(code, ""), "The sync service")
    assert isinstance(error, errors.Unreachable)
    assert error.retry


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_why_nobody_answers_is_said_without_grpcs_own_words(host: str) -> None:
    """With what this version of grpc says of a port at which nobody listens."""
    with (
        socket.socket() as nobody,
        grpc.insecure_channel(f"{host}:{_port_of(nobody)}") as channel,
        pytest.raises(grpc.RpcError) as failed,
    ):
        channel.unary_unary("/syncline/Nothing")(b"", timeout=30)
    error = status.from_rpc_error(failed.value, "The sync service")
    assert error.message == "The sync service does not answer (Connection refused)."


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        (b"", "it closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "does not speak gRPC"),
    ],
    ids=["closes", "speaks-http"],
)
def test_who_is_no_sync_service_is_told_in_plain_words(greeting: bytes, why: str) -> None:
    """With what this version of grpc says of who listens and is another program."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        grpc.insecure_channel(f"127.0.0.1:{other.getsockname()[1]}") as channel,
        ThreadPoolExecutor(1) as answering,
    ):
        done = answering.submit(_greets, other, greeting)
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary("/syncline/Nothing")(b"", timeout=30)
        done.result(timeout=30)
    error = status.from_rpc_error(failed.value, "The sync service")
    assert why in error.message and "SETTINGS" not in error.message


def test_a_name_that_no_machine_has_is_told_in_plain_words() -> None:
    said = "errors resolving no.invalid:1: [address lookup failed for no.invalid:1: not found]"
    error = status.from_rpc_error(Failed(grpc.StatusCode.UNAVAILABLE, said), "The sync service")
    assert error.message == ("The sync service does not answer (no machine of that name is known).")


def _greets(other: socket.socket, greeting: bytes) -> None:
    other.settimeout(30)
    connection, _ = other.accept()
    with connection:
        connection.sendall(greeting)


def _port_of(nobody: socket.socket) -> int:
    """A port that is taken, so that nobody else can listen there."""
    nobody.bind(("127.0.0.1", 0))
    return nobody.getsockname()[1]
