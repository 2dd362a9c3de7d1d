"""The way between a GPU and pinned memory: copies on a stream of their own, ordered by events.

No call waits for the device; who asks for values (``here``) does. What is fetched begins when all
is done that the device was told before, runs beside what it is told next, and ends before an
optimizer's step; encoding waits for it, in the thread that sends. What is put goes up on the second
stream, after all that was fetched before, while layers ahead of it compute; the current stream
waits for it, and copies it from its staging buffer into the parameters. Two such buffers, each as
large as the largest piece that comes up (in fp32 where progress is moved onto another anchor), are
what this takes of the device, from the first merge of a round to the next step; a third piece
waits, on the device, until the first has been copied. Where types differ there is a little more:
what is blended is converted as a whole, what is fetched tensor by tensor.

Where anchors lie on the device, what is published goes up into the anchor's own room instead of a
staging buffer, once the current stream has used the one before, and stays; what it has more than
the parameters is computed on the second stream, tensor by tensor, and fetched from there.

Knows streams and events only by ``Streams``, and decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from syncline.carrier import Carrier, Direct, Fetched, Room, along, as_tensor, of_their_types
from syncline.gathering import Part, Window, to_send
from syncline.layout import RankShard
from syncline.payload import Later
from syncline.scratch import Event, Scratch
from syncline.settings import AnchorDevice
from syncline_proto.codec import Codec, Float32, UInt8, UInt16
from syncline_proto.errors import ConfigError

STREAMED = ("cuda", "xpu")
"""Devices that have streams and pinned memory; of all others copies are direct."""

BUFFERS = 2
"""On the device, for what comes up."""


class Streams(Protocol):
    """What one device is told: in order on each stream, in any order between two."""

    def side(self) -> AbstractContextManager[object]:
        """Inside, the current stream is the second one."""
        ...

    def event(self) -> Event:
        """Of all that the current stream was told so far."""
        ...


class DeviceStreams:
    """A device's own."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._side = device, torch.Stream(device)

    def side(self) -> AbstractContextManager[object]:
        return self._side

    def event(self) -> Event:
        return _Point(self._device)


class _Point:
    """A point of a device's current stream.

    An event that is given no stream goes by the one of the device that is current in torch, which
    need not be the model's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._event = device, torch.Event(device)
        self._event.record(torch.accelerator.current_stream(device))

    def wait(self) -> None:
        self._event.wait(torch.accelerator.current_stream(self._device))

    def query(self) -> bool:
        return self._event.query()

    def synchronize(self) -> None:
        self._event.synchronize()


@dataclass(slots=True)
class StagingBuffer:
    """Memory of the device for what comes up; told of on the second stream."""

    memory: Tensor | None = None
    free: Event | None = None
    """When the current stream has used what is in it."""

    def empty(self, like: Tensor, device: torch.device) -> Tensor:
        """Memory for as much, of its type, once it is free: anything is in it."""
        if self.free is not None:
            self.free.wait()
        if self.memory is None or self.memory.numel() < like.nbytes:
            self.memory = None  # before there is another
            self.memory = torch.empty(like.nbytes, dtype=torch.uint8, device=device)
        return self.memory[: like.nbytes].view(like.dtype)


@dataclass(slots=True)
class Streamed:
    """A carrier for the parameters of one device."""

    scratch: Scratch
    device: torch.device
    streams: Streams
    keeps_anchors: bool = False
    """Anchors lie on the device."""
    _buffers: list[StagingBuffer] = field(default_factory=list)
    _fetching: Event | None = None
    """When nothing of the parameters is read any more."""
    _busy: deque[tuple[Event, object]] = field(default_factory=deque)
    """What must live as long as a copy is under way, whoever else lets go of it."""

    def room(self) -> Room | None:
        return Room() if self.keeps_anchors else None

    def fetch(self, tensors: Sequence[Tensor], out: Float32) -> Fetched:
        return self._fetched([Part(tensor) for tensor in tensors], out)

    def encode(self, parts: Sequence[Part], codec: Codec, out: UInt8) -> Callable[[], None]:
        memory = self.scratch.take(4 * sum(part.values.numel() for part in parts))
        fetched = self._fetched(parts, memory.view(np.float32))

        def finish() -> None:
            here = along((part.values for part in parts), torch.from_numpy(fetched.here()))
            come = (
                Part(values, None if isinstance(part.anchor, Tensor) else part.anchor)
                for part, (_, values) in zip(parts, here, strict=True)
            )
            Window().gather(come, codec, out)
            self.scratch.give_back(memory)

        return Later(finish)

    def put(
        self, tensors: Sequence[Tensor], values: Float32 | UInt16, room: Room | None = None
    ) -> Event:
        buffer, staged, sent = self._sent(values, room)
        for tensor, part in along(tensors, staged):
            tensor.copy_(part)
        buffer.free = self.streams.event()
        return sent

    def put_back(self, tensors: Sequence[Tensor], room: Room) -> None:
        if self._fetching is not None:  # nothing comes up here that would go after it
            self._fetching.wait()
        for tensor, part in along(tensors, room.here()):
            tensor.copy_(part)
        room.free = self.streams.event()

    def shift(
        self,
        tensors: Sequence[Tensor],
        to: Float32 | UInt16,
        start: Float32,
        room: Room | None = None,
    ) -> Event:
        other, before, gone = self._sent(start)
        buffer, after, sent = self._sent(to, room)
        before.neg_().add_(after)
        buffer.free = self.streams.event()
        for tensor, part in along(tensors, before):
            tensor.add_(part)
        other.free = self.streams.event()
        self.scratch.give_back(start.view(np.uint8), gone)
        return sent

    def blend(
        self,
        tensors: Sequence[Tensor],
        other: Float32 | UInt16,
        share: float,
        room: Room | None = None,
    ) -> Event:
        buffer, staged, sent = self._sent(other, room)
        for tensor, part in of_their_types(tensors, staged):
            tensor.lerp_(part, 1 - share)
        buffer.free = self.streams.event()
        return sent

    def before_step(self) -> None:
        if self._fetching is not None:
            self._fetching.wait()
            self._fetching = None
        for buffer in self._buffers:
            with self.streams.side():  # whose memory it is, and who may be given it next
                if buffer.free is not None:
                    buffer.free.wait()
        self._buffers.clear()
        self._let_go()

    def _fetched(self, parts: Sequence[Part], out: Float32) -> Fetched:
        """Copy what is to be sent of the parts, so far as the device has it, into ``out``."""
        told = self.streams.event()
        with self.streams.side():
            told.wait()
            where = along((part.values for part in parts), torch.from_numpy(out))
            for part, (_, here) in zip(parts, where, strict=True):
                here.copy_(to_send(part), non_blocking=True)
            self._fetching = self.streams.event()
        self._hold(self._fetching, (out, parts))
        return Fetched(out, self._fetching)

    def _sent(
        self, values: Float32 | UInt16, room: Room | None = None
    ) -> tuple[StagingBuffer | Room, Tensor, Event]:
        """Send values up: where they will be, for the current stream, and when they have left."""
        buffer, flat = room or self._next_buffer(), as_tensor(values)
        with self.streams.side():
            staged = buffer.empty(flat, self.device)
            staged.copy_(flat, non_blocking=True)
            sent = self.streams.event()
        sent.wait()
        self._hold(sent, flat)
        return buffer, staged, sent

    def _next_buffer(self) -> StagingBuffer:
        is_full = len(self._buffers) == BUFFERS
        buffer = self._buffers.pop(0) if is_full else StagingBuffer()
        self._buffers.append(buffer)
        return buffer

    def _hold(self, until: Event, what: object) -> None:
        self._let_go()
        self._busy.append((until, what))

    def _let_go(self) -> None:
        while self._busy and self._busy[0][0].query():
            self._busy.popleft()


def carrier_of(shards: Iterable[RankShard], anchors: AnchorDevice = "cpu") -> Carrier:
    """For what a rank holds of a model, by the device that it lies on, and anchors are to.

    Of a model on several devices each copy has ended when it returns.

    Raises:
        ConfigError: anchors are to lie on the model's device, and there are several.
    """
    devices = {piece.parameter.device for shard in shards for piece in shard.pieces}
    beside = anchors == "model"
    if beside and len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ConfigError(
            f'anchor_device = "model" wants a model on one device; this one is on {names}. Leave '
            'anchors on the CPU: anchor_device = "cpu".'
        )
    if len(devices) != 1:
        return Direct(Scratch())
    device = devices.pop()
    if device.type in STREAMED:
        return Streamed(Scratch(pinned=True), device, DeviceStreams(device), beside)
    return Direct(Scratch(), device if beside and device.type != "cpu" else None)
