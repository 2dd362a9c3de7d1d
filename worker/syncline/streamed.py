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

Knows streams and events only by ``Streams``, and decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from syncline.carrier import Carrier, Direct, Fetched, along, as_tensor, of_their_types
from syncline.gathering import Part, Window
from syncline.layout import RankShard
from syncline.payload import Later
from syncline.scratch import Event, Scratch
from syncline_proto.codec import Codec, Float32, UInt8, UInt16

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
    _buffers: list[StagingBuffer] = field(default_factory=list)
    _fetching: Event | None = None
    """When nothing of the parameters is read any more."""
    _busy: deque[tuple[Event, object]] = field(default_factory=deque)
    """What must live as long as a copy is under way, whoever else lets go of it."""

    def fetch(self, tensors: Sequence[Tensor], out: Float32) -> Fetched:
        told = self.streams.event()
        with self.streams.side():
            told.wait()
            for tensor, part in along(tensors, torch.from_numpy(out)):
                part.copy_(tensor, non_blocking=True)
            self._fetching = self.streams.event()
        self._hold(self._fetching, (out, tensors))
        return Fetched(out, self._fetching)

    def encode(self, parts: Sequence[Part], codec: Codec, out: UInt8) -> Callable[[], None]:
        memory = self.scratch.take(4 * sum(part.values.numel() for part in parts))
        fetched = self.fetch([part.values for part in parts], memory.view(np.float32))

        def finish() -> None:
            here = along((part.values for part in parts), torch.from_numpy(fetched.here()))
            come = (
                replace(part, values=values) for part, (_, values) in zip(parts, here, strict=True)
            )
            Window().gather(come, codec, out)
            self.scratch.give_back(memory)

        return Later(finish)

    def put(self, tensors: Sequence[Tensor], values: Float32 | UInt16) -> Event:
        buffer, staged, sent = self._sent(values)
        for tensor, part in along(tensors, staged):
            tensor.copy_(part)
        buffer.free = self.streams.event()
        return sent

    def shift(self, tensors: Sequence[Tensor], to: Float32 | UInt16, start: Float32) -> Event:
        other, before, gone = self._sent(start)
        buffer, after, sent = self._sent(to)
        before.neg_().add_(after)
        buffer.free = self.streams.event()
        for tensor, part in along(tensors, before):
            tensor.add_(part)
        other.free = self.streams.event()
        self.scratch.give_back(start.view(np.uint8), gone)
        return sent

    def blend(self, tensors: Sequence[Tensor], other: Float32 | UInt16, share: float) -> Event:
        buffer, staged, sent = self._sent(other)
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

    def _sent(self, values: Float32 | UInt16) -> tuple[StagingBuffer, Tensor, Event]:
        """Send values up: where they will be, for the current stream, and when they have left."""
        is_full = len(self._buffers) == BUFFERS
        buffer = self._buffers.pop(0) if is_full else StagingBuffer()
        self._buffers.append(buffer)
        flat = as_tensor(values)
        with self.streams.side():
            staged = buffer.empty(flat, self.device)
            staged.copy_(flat, non_blocking=True)
            sent = self.streams.event()
        sent.wait()
        self._hold(sent, flat)
        return buffer, staged, sent

    def _hold(self, until: Event, what: object) -> None:
        self._let_go()
        self._busy.append((until, what))

    def _let_go(self) -> None:
        while self._busy and self._busy[0][0].query():
            self._busy.popleft()


def carrier_of(shards: Iterable[RankShard]) -> Carrier:
    """For what a rank holds of a model, by the device that it lies on.

    Of a model on several devices each copy has ended when it returns.
    """
    devices = {piece.parameter.device for shard in shards for piece in shard.pieces}
    if len(devices) == 1 and (device := devices.pop()).type in STREAMED:
        return Streamed(Scratch(pinned=True), device, DeviceStreams(device))
    return Direct(Scratch())
