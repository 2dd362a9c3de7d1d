"""A person who asks for a checkpoint while a sync service is away is told what to do."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest

from syncline.launch.copier import Copier
from syncline_proto.errors import SynclineError, Unreachable
from syncline_proto.status import CODE_TRAILER

AGAIN = "See that it runs, then try again."


@pytest.mark.parametrize(
    "ask",
    [
        lambda copier: list(copier.save("run", "/kept/one", 0, [0])),
        lambda copier: list(copier.restore("run", "/kept/one")),
        lambda copier: copier.manifest("/kept/one"),
        lambda copier: copier.observe("run"),
    ],
    ids=["save", "restore", "manifest", "observe"],
)
def test_nobody_listens(ask: Callable[[Copier], object]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with closing(Copier(address, None)) as copier, pytest.raises(Unreachable) as away:
            ask(copier)
    assert away.value.message == (
        f"The sync service at {address} does not answer (Connection refused). {AGAIN}"
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (grpc.StatusCode.UNAVAILABLE, rf"does not answer \(Stopping\)\. {AGAIN}"),
        (grpc.StatusCode.CANCELLED, rf"ended the call\. {AGAIN}"),
    ],
)
def test_it_ends_in_the_midst_of_a_call(code: grpc.StatusCode, said: str) -> None:
    assert re.search(f"{said}$", told(code, "Stopping", ()))


def test_what_it_says_itself_is_left_as_it_is() -> None:
    why = "Run r is being put away; open it again."
    assert told(grpc.StatusCode.UNAVAILABLE, why, ((CODE_TRAILER, "UNREACHABLE"),)) == why


@pytest.mark.parametrize("kind", ["CHECKPOINT", "CHECKPOINT_DAMAGED"])
def test_whose_place_refuses_is_named(kind: str) -> None:
    """A directory, room or credentials may be there for one of several services alone."""
    why = "s3://b/one: Unable to locate credentials."
    said = told(grpc.StatusCode.FAILED_PRECONDITION, why, ((CODE_TRAILER, kind),))
    assert re.fullmatch(rf"The sync service at 127\.0\.0\.1:\d+ says: {re.escape(why)}", said)


def told(code: grpc.StatusCode, details: str, trailer: tuple[tuple[str, str], ...]) -> str:
    """What becomes of a call that a service ends like this."""

    def end(_request: bytes, context: grpc.ServicerContext) -> Any:
        context.set_trailing_metadata(trailer)
        context.abort(code, details)

    class Ending(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_unary_rpc_method_handler(end)

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[Ending()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            with closing(Copier(address, None)) as copier, pytest.raises(SynclineError) as ended:
                copier.manifest("/kept/one")
        finally:
            server.stop(None).wait()
    return ended.value.message
