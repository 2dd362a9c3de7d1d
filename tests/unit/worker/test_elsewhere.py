"""A sync service that comes back at another address is found there, by each rank for itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import grpc
import httpx
import pytest
from structlog.testing import capture_logs

from syncline import link as links
from syncline import outage
from syncline.elsewhere import found_elsewhere
from syncline.link import Link
from syncline.push import Identity
from syncline.services import Services
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.owners import Seat
from syncline_proto.rest import SyncEndpoint
from syncline_proto.settings import TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.plane import control

LAYOUT = Layout((TensorSpec("t", (1,), "float32"),), (FragmentSpec("f", (Box(0, (0,), (1,)),)),))
SEAT = Seat(1, 3)


class Bounded(TimeoutSettings):
    """Patient enough for a busy machine, and no more."""

    @property
    def give_up_s(self) -> float:
        return 20.0


@contextmanager
def serving(instance: str) -> Iterator[str]:
    """A sync service that says where a run stands; its address. Nobody listens there afterwards."""
    server = grpc.server(ThreadPoolExecutor(2))
    answer = pb.GetRunStatusResponse(instance=instance, epoch=1, fragments=[pb.FragmentState()])
    status = grpc.unary_unary_rpc_method_handler(
        lambda request, context: answer, pb.GetRunStatusRequest.FromString,
        pb.GetRunStatusResponse.SerializeToString,
    )  # fmt: skip
    name = "syncline.sync.v1.SyncService"
    handler = grpc.method_handlers_generic_handler(name, {"GetRunStatus": status})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def endpoint(address: str, seat: Seat = SEAT, alive: bool = True) -> SyncEndpoint:
    return SyncEndpoint(
        name="sync", address=address, index=seat.index, shards=seat.shards, alive=alive
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_calls_go_to_where_the_service_has_come_back(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.setattr(outage, "SAY_AFTER_S", 0.1)
    monkeypatch.setattr(links, "LOOK_S", 0.1)
    places: list[str | None] = [None, None]
    asked: list[str] = []

    def elsewhere(address: str) -> str | None:
        asked.append(address)
        return places.pop(0) if places else None

    me = Identity(run="run", replica="one", incarnation=1, rank=rank, ranks=2)
    timeouts = Bounded()
    with serving("first") as before:
        link = Link(before, timeouts, None, elsewhere)
        services = Services(me, LAYOUT, {0: link}, {0: 1}, timeouts, Event())
        assert services.instance(0) == "first"
    with serving("second") as after, capture_logs() as logs:
        places.append(after)
        assert services.instance(0) == "second"
        assert asked == [before] * 3 and link.address == after, "it was asked until it knew"
        assert services.instance(0) == "second" and len(asked) == 3, "who answers is not left"
        said = [line["event"] for line in logs]
        assert said == (["sync.away", "sync.moved", "sync.back"] if rank == 0 else [])
        services.close()
        assert not link.follow() and len(asked) == 3, "a link that is closed stays so"


def test_who_sits_in_the_same_place_elsewhere_and_is_alive_is_the_same_service() -> None:
    listed: list[SyncEndpoint] = []

    def answer() -> bytes:
        return f"[{','.join(one.model_dump_json() for one in listed)}]".encode()

    with control(answer) as url:

        def found() -> str | None:
            return found_elsewhere(url, None, SEAT, "a:1")

        listed[:] = [endpoint("a:1"), endpoint("b:1", Seat(0, 3)), endpoint("c:1", Seat(1, 2))]
        assert found() is None
        listed.append(endpoint("d:1", alive=False))
        assert found() is None
        listed[0] = endpoint("a:2")
        assert found() == "a:2"
        listed[0] = endpoint("no port")
        assert found() is None
    assert found() is None, "nobody can say"


def test_who_could_not_ask_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that fails of itself is one that found nothing, and not the last one of all."""
    monkeypatch.setattr(links, "LOOK_S", 0.0)
    said: list[str | None] = ["127.0.0.1:2"]

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    def elsewhere(_: str) -> str | None:
        if len(said) > 1:
            return said[0]
        said.append(None)
        raise RuntimeError

    link = Link("127.0.0.1:1", TimeoutSettings(), None, elsewhere)
    with pytest.raises(RuntimeError):
        link.follow()
    assert link.follow()
    link.close()
    monkeypatch.setattr(httpx.Client, "__init__", fail)
    assert found_elsewhere("http://127.0.0.1:1", None, SEAT, "127.0.0.1:1") is None
