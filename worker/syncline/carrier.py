"""How values come from a model to memory of the CPU, and back into it.

Where anchors are to lie on the model's device it keeps them in the rooms that it gives.

``Direct`` copies when it is called, whatever the device: what it returns is there. ``streamed`` has
the way of a GPU, where a call only says what is to be copied. Knows tensors, which stand for one
flat vector, one after another; nothing of fragments, revisions or services. One thread calls; what
a call returns may go to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from syncline.change import Change
from syncline.core.progress import corrected
from syncline.gathering import Part, Window
from syncline.scratch import Event, Scratch
from syncline_proto.codec import Codec, Float32, UInt8, UInt16


@dataclass(slots=True)
class Room:
    """Where one anchor lies on its model's device; as large as that, in each round the same."""

    values: Tensor | None = None
    """Flat, fp32 or bf16; None before the first."""
    free: Event | None = None
    """When the current stream has used what is in it."""

    def empty(self, like: Tensor, device: torch.device) -> Tensor:
        """Memory for another, once it is free: what is in it may be the one before.

        That one goes only when there is memory of the new one's type.
        """
        if self.free is not None:
            self.free.wait()
        if self.values is None or self.values.dtype != like.dtype:
            self.values = torch.empty(like.numel(), dtype=like.dtype, device=device)
        return self.values

    def here(self) -> Tensor:
        """The anchor."""
        assert self.values is not None
        return self.values


@dataclass(slots=True)
class Fetched:
    """Values of a model as they were when they were asked for: fp32, flat."""

    values: Float32
    """Anything, until they are ``here``."""
    arrival: Event | None = None

    def here(self) -> Float32:
        """The values, once they have come."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.values


class Carrier(Protocol):
    """Between detached tensors of a model and flat arrays of the CPU, which are from ``scratch``.

    An array that was given to a call is not to be changed before the event that the call returned,
    if it did: ``Scratch.give_back`` takes it. Values that are published stay in a ``room``, where
    one is given.
    """

    @property
    def scratch(self) -> Scratch: ...

    def room(self) -> Room | None:
        """For an anchor that is to lie on the model's device; None: anchors lie on the CPU."""
        ...

    def fetch(self, tensors: Sequence[Tensor], out: Float32) -> Fetched:
        """Copy what is in the tensors now into ``out``."""
        ...

    def encode(self, parts: Sequence[Part], codec: Codec, out: UInt8) -> Callable[[], None]:
        """Encode what is in the tensors now as one payload, ``out``, of just its size.

        What it returns is to be called, once and from any thread, before ``out`` is looked at.
        """
        ...

    def put(
        self, tensors: Sequence[Tensor], values: Float32 | UInt16, room: Room | None = None
    ) -> Event | None:
        """Write values (bf16 as its bits) into the tensors."""
        ...

    def put_back(self, tensors: Sequence[Tensor], room: Room) -> None:
        """Write what is in a room into the tensors."""
        ...

    def shift(
        self,
        tensors: Sequence[Tensor],
        to: Float32 | UInt16,
        start: Float32,
        room: Room | None = None,
    ) -> Event | None:
        """Add ``to`` - ``start``, of one rounding, to the tensors; ``start`` goes to scratch."""
        ...

    def blend(
        self,
        tensors: Sequence[Tensor],
        other: Float32 | UInt16,
        share: float,
        room: Room | None = None,
    ) -> Event | None:
        """Keep ``share`` of what the tensors hold, and take the rest from ``other``."""
        ...

    def before_step(self) -> None:
        """Whatever is told to the device next may change what was fetched."""
        ...


class Direct:
    """A carrier that has copied when it returns."""

    def __init__(self, scratch: Scratch, device: torch.device | None = None) -> None:
        """Anchors are to lie on ``device``; None: on the CPU."""
        self.scratch, self._device = scratch, device
        self._window = Window()

    def room(self) -> Room | None:
        return None if self._device is None else Room()

    def fetch(self, tensors: Sequence[Tensor], out: Float32) -> Fetched:
        for tensor, part in along(tensors, torch.from_numpy(out)):
            part.copy_(tensor)
        return Fetched(out)

    def encode(self, parts: Sequence[Part], codec: Codec, out: UInt8) -> Callable[[], None]:
        self._window.gather(parts, codec, out)
        return lambda: None

    def put(
        self, tensors: Sequence[Tensor], values: Float32 | UInt16, room: Room | None = None
    ) -> None:
        for tensor, part in along(tensors, self._kept(values, room)):
            tensor.copy_(part)

    def put_back(self, tensors: Sequence[Tensor], room: Room) -> None:
        for tensor, part in along(tensors, room.here()):
            tensor.copy_(part)

    def shift(
        self,
        tensors: Sequence[Tensor],
        to: Float32 | UInt16,
        start: Float32,
        room: Room | None = None,
    ) -> None:
        by = as_tensor(corrected(in_fp32(to), start))
        pairs = [(tensor, part.to(tensor.device)) for tensor, part in along(tensors, by)]
        self._kept(to, room)
        for tensor, part in pairs:
            tensor.add_(part)
        self.scratch.give_back(start.view(np.uint8))

    def blend(
        self,
        tensors: Sequence[Tensor],
        other: Float32 | UInt16,
        share: float,
        room: Room | None = None,
    ) -> None:
        for tensor, part in of_their_types(tensors, self._kept(other, room)):
            tensor.lerp_(part, 1 - share)

    def before_step(self) -> None:
        pass

    def _kept(self, values: Float32 | UInt16, room: Room | None) -> Tensor:
        """The values, from where they are to stay."""
        flat = as_tensor(values)
        if room is None or self._device is None:
            return flat
        return room.empty(flat, self._device).copy_(flat)


def land(change: Change, tensors: Sequence[Tensor]) -> None:
    """Make what a change is held to the next value, and write that into ``tensors``.

    Where it is broken off it may be called again. Where the loop has laid out a tensor anew
    meanwhile, so that it is none that ``takes_change`` takes, it is written after that.
    """
    direct = [takes_change([tensor]) for tensor in tensors]
    outs = [
        tensor.reshape(-1).numpy() if is_direct else np.empty(tensor.numel(), np.float32)
        for tensor, is_direct in zip(tensors, direct, strict=True)
    ]
    change.carry(outs)
    for tensor, out, is_direct in zip(tensors, outs, direct, strict=True):
        if is_direct:
            torch.autograd.graph.increment_version(tensor)
        else:
            tensor.copy_(torch.from_numpy(out).view(tensor.shape))


def takes_change(tensors: Iterable[Tensor]) -> bool:
    """Whether a change is carried straight into them: fp32, on the CPU, without gaps."""
    return all(t.is_cpu and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


def along(tensors: Iterable[Tensor], flat: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Each tensor with its part of a flat one, in its shape."""
    pairs: list[tuple[Tensor, Tensor]] = []
    at = 0
    for tensor in tensors:
        pairs.append((tensor, flat[at : at + tensor.numel()].view(tensor.shape)))
        at += tensor.numel()
    return pairs


def of_their_types(tensors: Iterable[Tensor], flat: Tensor) -> list[tuple[Tensor, Tensor]]:
    """As ``along``, each part of its tensor's type and on its device.

    All before the first is used: memory may run out, and a fragment is not to be half changed then.
    """
    return [(tensor, part.to(tensor.device, tensor.dtype)) for tensor, part in along(tensors, flat)]


def as_tensor(values: Float32 | UInt16) -> Tensor:
    """The same memory as a tensor: fp32, or bf16."""
    if values.dtype == np.float32:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)


def in_fp32(values: Float32 | UInt16) -> Float32:
    """The values in fp32: themselves, or a copy."""
    return as_tensor(values).float().numpy()
