"""Copies beside a device's work: whatever it does in which order, it is as if each were at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from syncline import streamed
from syncline.anchors import Anchors
from syncline.carrier import Carrier, Direct, Fetched
from syncline.layout import outline
from syncline.payload import Encoded
from syncline.ranks import Ranks
from syncline.scratch import Scratch
from syncline.streamed import DeviceStreams, Streamed
from syncline_proto.codec import Float32, UInt16
from syncline_proto.errors import ConfigError
from syncline_proto.settings import CodecName
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.replicas import TinyModel
from syncline_testing.streams import Device, Event


class Side:
    """A model with its anchors, and what was asked of it and has not been looked at."""

    def __init__(
        self, model: nn.Module, device: Device | torch.device | None, beside: bool = False
    ) -> None:
        """``beside``: the anchors lie on the device, too."""
        self.model = model
        self.device = device if isinstance(device, Device) else None
        carrier: Carrier = Direct(Scratch())
        if isinstance(device, torch.device):
            self.model.to(device)
            carrier = Streamed(Scratch(pinned=True), device, DeviceStreams(device), beside)
        elif device is not None:
            for parameter in self.model.parameters():
                device.own(parameter)
            carrier = Streamed(Scratch(), torch.device("cpu"), device, beside)
        self.anchors = Anchors(outline(self.model, Ranks()).cut().shards, carrier)
        self.starts: dict[int, Fetched] = {}
        self.pushed: dict[int, Encoded] = {}
        self.seen: list[list[int]] = []

    def do(self, act: Callable[[Side], object]) -> None:
        if self.device is None:
            act(self)
            return
        with self.device.told():
            act(self)

    def step(self) -> None:
        """An optimizer's."""
        self.anchors.before_step()
        for parameter in self.model.parameters():
            parameter.detach().mul_(0.75).add_(0.125)

    def push(self, fragment: int, codec: CodecName) -> None:
        self.look(fragment)
        self.pushed[fragment] = self.anchors.pseudo_gradient(fragment, codec)
        self.starts[fragment] = self.anchors.current(fragment)

    def look(self, fragment: int) -> None:
        """As the thread that sends, which tells the device nothing."""
        if fragment in self.pushed:
            payload = self.pushed.pop(fragment)
            self.seen.append(payload.here().tolist())
            self.anchors.scratch.give_back(payload.memory)

    def merge(self, fragment: int, values: Float32 | UInt16, way: str) -> None:
        self.look(fragment)
        header = pb.PullHeader(revision=1)
        values = self.room(values)
        start = self.starts.pop(fragment, None)
        if way == "rebase":
            self.anchors.rebase(fragment, values, header)
        elif start is None or way == "adopt":
            self.anchors.adopt(fragment, values, header)
        else:
            self.anchors.advance(fragment, values, header, start, 0.5 if way == "mix" else None)

    def room(self, values: Float32 | UInt16) -> Float32 | UInt16:
        """As pulled: in memory that was used before."""
        taken = self.anchors.scratch.take(values.nbytes)
        taken[:] = values.view(np.uint8)
        return taken.view(np.float32) if values.dtype == np.float32 else taken.view(np.uint16)

    def parameters(self) -> list[list[float]]:
        if self.device is not None:
            self.device.finish()
        return [p.detach().float().cpu().reshape(-1).tolist() for p in self.model.parameters()]


ways = st.sampled_from(["adopt", "advance", "mix", "rebase", "restore", "push", "look", "step"])


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=60, deadline=None)
@example(seed=0, zeal=0.0, acts=[("push", 0, False), ("advance", 0, False), ("rebase", 0, False)])
@example(seed=0, zeal=0.0, acts=[("adopt", 0, False), ("adopt", 0, False), ("rebase", 0, False)])
@example(seed=0, zeal=0.0, acts=[("restore", 0, False)] + 2 * [("rebase", 0, False)])
@example(seed=1, zeal=0.3, acts=[("step", 0, False), ("push", 0, False), ("restore", 0, False)])
@example(seed=0, zeal=0.0, acts=[("push", 0, False), ("step", 0, False), ("adopt", 0, True)])
@given(
    seed=st.integers(0, 10**6),
    zeal=st.sampled_from([0.0, 0.3, 0.8]),
    acts=st.lists(st.tuples(ways, st.integers(0, 2), st.booleans()), min_size=8, max_size=30),
)
def test_all_is_as_if_it_had_been_done_at_once(
    dtype: torch.dtype, beside: bool, seed: int, zeal: float, acts: list[tuple[str, int, bool]]
) -> None:
    """Wherever the anchors lie."""
    device = Device(Random(seed), zeal)
    here, there = Side(TinyModel().to(dtype), None), Side(TinyModel().to(dtype), device, beside)
    act_out(acts, seed, here, there)
    assert there.parameters() == here.parameters()
    assert there.seen == here.seen


def act_out(acts: list[tuple[str, int, bool]], seed: int, here: Side, there: Side) -> None:
    """Do the same on both sides, with the same values, and look at all that was pushed."""
    draw = np.random.default_rng(seed)
    numels = [shard.numel for shard in here.anchors.shards]
    acts = [("adopt", fragment, False) for fragment in range(len(numels))] + acts
    for way, fragment, in_bf16 in acts:
        values = draw.normal(size=numels[fragment]).astype(np.float32)
        told = (values.view(np.uint32) >> 16).astype(np.uint16) if in_bf16 else values
        for side in (here, there):
            if way == "step":
                side.do(lambda side: side.step())
            elif way == "restore":
                side.do(lambda side, at=fragment: side.anchors.restore(at))
            elif way == "push":
                codec = "int8" if in_bf16 else "fp32"
                side.do(lambda side, at=fragment, c=codec: side.push(at, c))
            elif way == "look":
                side.look(fragment)
            else:
                side.do(lambda side, at=fragment, v=told, w=way: side.merge(at, v.copy(), w))
    for side in (here, there):
        for fragment in range(len(numels)):
            side.look(fragment)


class Waited(AssertionError):
    """The training thread was to wait for the device."""


@pytest.fixture
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a device on the test's own thread fails; others, which send, may."""
    training = threading.get_ident()

    def guarded(wait: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*given: Any) -> Any:
            has_come = bool(given) and given[0].query()
            if threading.get_ident() == training and not has_come:
                raise Waited
            return wait(*given)

        return waits

    for owner in (Event, torch.cuda, torch.accelerator, torch.cuda.Stream, torch.cuda.Event):
        monkeypatch.setattr(owner, "synchronize", guarded(owner.synchronize))


@pytest.mark.usefixtures("never_waits")
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("way", ["adopt", "advance", "mix", "restore"])
def test_the_training_thread_never_waits_for_the_device(way: str, beside: bool) -> None:
    """Each call returns before the device has done any of it.

    What was fetched at the push has come when its round is published: another thread sent it.
    """
    device = Device(Random(0), 0.0)  # goes on only where somebody waits
    side = Side(TinyModel(), device, beside)
    anchors, header = side.anchors, pb.PullHeader(revision=1)
    for fragment, shard in enumerate(anchors.shards):
        values = np.ones(shard.numel, np.float32)
        side.do(lambda side, at=fragment, v=values: side.anchors.adopt(at, v, header))
    side.do(lambda side: side.step())
    with device.told():
        payload = anchors.pseudo_gradient(0, "fp32")
        start = anchors.current(0)
    assert not device.has_done("main", 1) and not device.has_done("side", 1)
    with pytest.raises(Waited):
        payload.here()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(payload.here).result().view(np.float32)
        pool.submit(start.here).result()
    assert (sent == 0.125).all()  # the anchor, 1, less what a step makes of it
    values = np.zeros(anchors.shards[0].numel, np.float32)
    with device.told():
        before = device.progress
        if way == "adopt":
            anchors.adopt(0, values, header)
        elif way == "restore":
            anchors.restore(0)
        else:
            anchors.advance(0, values, header, start, 0.5 if way == "mix" else None)
        anchors.before_step()
        assert device.progress == before and device.is_behind


def test_values_come_up_for_two_layers_while_those_before_them_compute() -> None:
    """A third one's wait until the device has taken the first one's from where they will be."""
    device = Device(Random(0), 0.0)
    carrier = Streamed(Scratch(), torch.device("cpu"), device)
    layers = [torch.zeros(8) for _ in range(4)]
    sent = list[Event]()
    for layer in layers:
        device.own(layer)
    with device.told():
        for layer in layers:
            event = carrier.put([layer], np.ones(8, np.float32))
            assert isinstance(event, Event)
            sent.append(event)
            layer.mul_(2.0)  # what it computes
    device.run_ahead("side")
    assert [one.query() for one in sent] == [True, True, False, False]
    assert not device.has_done("main", 1)
    device.run_ahead("main")
    device.run_ahead("side")
    assert all(one.query() for one in sent)
    device.finish()
    assert all((layer == 2.0).all() for layer in layers)


@pytest.mark.parametrize("back", [False, True])
def test_an_anchor_stays_in_its_room_until_it_was_read(back: bool) -> None:
    """The next one comes up only then: after it was put, or put ``back``."""
    device = Device(Random(0), 0.0)
    carrier = Streamed(Scratch(), torch.device("cpu"), device, keeps_anchors=True)
    layer, seen, room = torch.zeros(8), torch.zeros(8), carrier.room()
    assert room is not None
    for tensor in (layer, seen):
        device.own(tensor)
    with device.told():
        carrier.put([layer], np.ones(8, np.float32), room)
    if back:
        device.finish()
        with device.told():
            layer.mul_(0.0)
            carrier.put_back([layer], room)
    with device.told():
        seen.copy_(layer)  # what it computes with it
        carrier.put([layer], np.full(8, 2.0, np.float32), room)
    device.run_ahead("side")  # as far as it may
    device.finish()
    assert (seen == 1.0).all() and (layer == 2.0).all()
    assert (room.here() == 2.0).all()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("way", ["adopt", "advance", "mix", "rebase", "restore"])
def test_what_comes_up_takes_two_of_the_largest_piece_until_the_next_step(
    way: str, beside: bool
) -> None:
    """Of the device; it grows meanwhile, since the largest comes last.

    Anchors that lie there are all that stays, and no other room is taken for what becomes one.
    """
    device = Device(Random(0), 0.0)
    side = Side(TinyModel(), device, beside)
    sizes = [4 * shard.numel for shard in side.anchors.shards]
    assert sizes[-1] == max(sizes) > min(sizes) > 0

    def each(way: str) -> None:
        for fragment, size in enumerate(sizes):
            values = np.ones(size // 4, np.float32)
            if way == "advance" or way == "mix":
                side.do(lambda side, at=fragment: side.push(at, "fp32"))
            if way == "restore":
                side.do(lambda side, at=fragment: side.anchors.restore(at))
            else:
                side.do(lambda side, at=fragment, v=values: side.merge(at, v, way))
            device.finish()  # else what it is to do holds what it is to do it with

    each("adopt")
    side.do(lambda side: side.step())
    stay = beside * sum(sizes)
    assert device.lent == stay
    device.lent_peak = 0
    each(way)
    if beside and way in ("adopt", "mix", "restore"):
        assert device.lent == stay >= device.lent_peak
    else:
        assert max(sizes) < device.lent_peak - stay <= 2 * max(sizes)
        assert device.lent > stay
    side.do(lambda side: side.step())
    assert device.lent == stay


@pytest.mark.parametrize(("kind", "is_pinned"), [("cuda", True), ("cpu", False)])
def test_what_waits_beside_a_gpu_waits_in_pinned_memory(
    monkeypatch: pytest.MonkeyPatch, kind: str, is_pinned: bool
) -> None:
    """Anchors, too: they lie in what was pulled, which is read into scratch."""
    asked: list[bool] = []
    empty = torch.empty

    def noted(*size: int, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*size, **how)

    monkeypatch.setattr(streamed, "DeviceStreams", lambda device: Device(Random(0), 0.0))
    piece = SimpleNamespace(parameter=SimpleNamespace(device=torch.device(kind, 0)))
    shards: Any = [SimpleNamespace(pieces=[piece])]
    beside = streamed.carrier_of(shards, "model")
    assert (beside.room() is not None) == (kind != "cpu")
    assert streamed.carrier_of(shards).room() is None
    scratch = streamed.carrier_of(shards).scratch
    monkeypatch.setattr(torch, "empty", noted)
    assert scratch.take(8).size == 8
    assert asked == [True] * is_pinned


def test_anchors_lie_on_the_device_of_a_model_that_has_one() -> None:
    """Of one on the CPU that is where they lie anyway; of several nobody could say which."""
    pieces = [SimpleNamespace(parameter=torch.empty(1, device=kind)) for kind in ("cpu", "meta")]
    shards: list[Any] = [SimpleNamespace(pieces=[piece]) for piece in pieces]
    assert streamed.carrier_of(shards[:1], "model").room() is None
    assert streamed.carrier_of(shards[1:], "model").room() is not None
    assert streamed.carrier_of(shards).room() is None
    with pytest.raises(ConfigError, match="wants a model on one device; this one is on cpu, meta"):
        streamed.carrier_of(shards, "model")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("number", sorted({0, max(0, torch.cuda.device_count() - 1)}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_gpu_holds_what_the_cpu_would(dtype: torch.dtype, number: int, beside: bool) -> None:
    """Of several GPUs the last one, too, which is not the current one in torch."""
    draw = Random(0)
    for seed in range(20):
        # Where a GPU mixes, it may round otherwise.
        choice = ["adopt", "advance", "rebase", "restore", "push", "look", "step"]
        acts = [(draw.choice(choice), draw.randrange(2), draw.random() < 0.5) for _ in range(40)]
        here = Side(two_blocks().to(dtype), None)
        there = Side(two_blocks().to(dtype), torch.device("cuda", number), beside)
        act_out(acts, seed, here, there)
        assert there.parameters() == here.parameters()
        assert there.seen == here.seen
        assert torch.from_numpy(there.anchors.scratch.take(64)).is_pinned()


def two_blocks() -> nn.Module:
    """Two fragments, large enough to be copied for a while."""
    return nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(900, 900) for _ in range(2))})
