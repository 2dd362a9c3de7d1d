"""Who owns what, as a replica finds it: every service there, every fragment owned once."""

from __future__ import annotations

import pytest

from syncline.control import all_alive
from syncline.join import _check_nothing_lost
from syncline.standing import owners_of
from syncline_proto.errors import RunConflict, Unreachable
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.rest import SyncEndpoint
from syncline_proto.v1 import sync_pb2 as pb

URL = "http://127.0.0.1:8500"
LAYOUT = Layout(
    tuple(TensorSpec(f"w{i}", (2,), "float32") for i in range(3)),
    tuple(FragmentSpec(f"f{i}", (Box(i, (0,), (2,)),)) for i in range(3)),
)


def endpoint(index: int, shards: int, alive: bool = True) -> SyncEndpoint:
    name = f"sync-{index}"
    return SyncEndpoint(name=name, address="a:1", index=index, shards=shards, alive=alive)


def says(*fragments: int, initialised: bool = True) -> pb.OpenRunResponse:
    states = [pb.FragmentState(fragment=f, initialised=initialised) for f in fragments]
    return pb.OpenRunResponse(epoch=1, fragments=states)


def test_all_services_that_share_are_waited_for_and_who_is_missing_is_named() -> None:
    every = [endpoint(index, 3) for index in range(3)]
    assert all_alive(every, URL) == every
    with pytest.raises(Unreachable, match=r"Of the 3 .* 1 \(counted from 0\) is missing.*index 1"):
        all_alive([every[0], every[2]], URL)
    with pytest.raises(Unreachable, match="1, 2 .* are missing"):
        all_alive([every[0], endpoint(1, 3, alive=False)], URL)
    with pytest.raises(Unreachable, match="No sync service is alive"):
        all_alive([], URL)


def test_services_that_have_ended_are_named() -> None:
    def said(count: int) -> str:
        with pytest.raises(Unreachable) as error:
            all_alive([endpoint(index, count, alive=False) for index in range(count)], URL)
        return error.value.message

    one, two, many = said(1), said(2), said(6)
    assert "where sync-0 (a:1) had been; start it again on its folder and ports: " in one
    assert one.endswith(f"syncline-sync --control {URL} --data FOLDER")
    assert (
        "sync-0 (a:1), sync-1 (a:1) had been; start them again, each on its own folder and ports: "
        in two
    )
    assert two.endswith(f"{URL} --shards 2 --index 0 --data FOLDER")
    assert "sync-3 (a:1) and 2 more had been" in many and "sync-4" not in many


def test_every_fragment_has_one_owner() -> None:
    assert owners_of(LAYOUT, {"a": says(0, 2), "b": says(1)}) == {0: "a", 1: "b", 2: "a"}
    with pytest.raises(Unreachable, match=r"owns fragment f1; start those that lack"):
        owners_of(LAYOUT, {"a": says(0, 2), "b": says()})
    with pytest.raises(Unreachable, match=r"Two sync services own fragment f2"):
        owners_of(LAYOUT, {"a": says(0, 2), "b": says(1, 2)})


def test_a_service_that_lost_its_part_of_a_run_gets_none_of_another_model() -> None:
    _check_nothing_lost(LAYOUT, "a:1", says(0, 2))
    with pytest.raises(RunConflict, match=r"at a:1 has nothing of fragment f1"):
        _check_nothing_lost(LAYOUT, "a:1", says(1, initialised=False))
