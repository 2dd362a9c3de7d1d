"""The anchors: each fragment as last received, this rank's shard of it.

They lie on the CPU, or by choice on the model's device.

Writes published values (flat; fp32, or bf16 as bits) into the model, and what is in the model into
payloads, shard by shard. Knows nothing of services: the training thread calls, and nobody else
changes what is here. Other threads read ``revisions`` (the heartbeat's) and what is ``held`` (an
exchange's), and take from ``scratch``. How values come to a device and from it is a ``Carrier``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from syncline.carrier import (
    Carrier,
    Fetched,
    along,
    as_tensor,
    in_fp32,
    land,
    takes_change,
)
from syncline.change import Change
from syncline.core.progress import rebased
from syncline.gathering import Part
from syncline.layout import Piece, RankShard, local_part
from syncline.payload import Encoded
from syncline.pulled import Held
from syncline.scratch import Event
from syncline_proto.codec import CODEC_BY_NAME, Float32, UInt8, UInt16, codec_of
from syncline_proto.settings import CodecName
from syncline_proto.v1 import sync_pb2 as pb

_KEEPS_FP32 = (torch.float32, torch.float64)
_KEEPS_BF16 = (*_KEEPS_FP32, torch.bfloat16)
"""Parameters that hold any value of fp32, of bf16, as it is."""


Published: TypeAlias = Float32 | UInt16 | Change
"""A value, flat: fp32, bf16 as its bits, or what takes the anchor there."""


class Anchors:
    """This rank's anchors, and what is pushed of the model.

    A published value in bf16 is kept in bf16, without loss. What is pushed of a fragment lies
    in memory from ``scratch`` until its result is merged; then the next push may have that. An
    anchor that has a successor goes there, too.

    Where the carrier has rooms, an anchor lies in its own, on the model's device, and what was
    pulled goes back to ``scratch`` at the first step for which the device has copied it; but where
    ``keeps_copies`` that stays, too.
    """

    def __init__(
        self, shards: tuple[RankShard, ...], carrier: Carrier, *, keeps_copies: bool = False
    ) -> None:
        self.shards, self.scratch = shards, carrier.scratch
        self.revisions = [0] * len(shards)
        """By fragment; the list keeps its length, so a reader meets whole numbers at any time."""
        self.epochs = [0] * len(shards)
        """Of those revisions."""
        self._carrier = carrier
        self._values: list[Float32 | UInt16] = [np.empty(0, np.float32) for _ in shards]
        self._busy: list[Event | None] = [None for _ in shards]
        """When no device copies an anchor any more."""
        self._rooms = [carrier.room() for _ in shards]
        """None: the anchor is in ``_values``."""
        self._leaving: deque[tuple[UInt8, Event]] = deque()
        """What is copied to the device still: nobody is to take it, and wait for that."""
        self.keeps_copies = keeps_copies
        """Of anchors that lie on a device, for differences that come to them. From the next on."""
        self._names = [""] * len(shards)

    def before_step(self) -> None:
        """The parameters may change from now on."""
        self._carrier.before_step()
        while self._leaving and self._leaving[0][1].query():
            self.scratch.give_back(self._leaving.popleft()[0])

    def adopt(self, fragment: int, values: Published, header: pb.PullHeader) -> None:
        """Write a published value (flat; bf16 as its bits) into the model and make it the anchor.

        The array is ours from then on: nothing is copied, and the one before goes back to
        ``scratch``. Whoever has its ``held`` must be done with it. What is a change to the anchor
        is added to it.
        """
        tensors = self._tensors(fragment)
        if isinstance(values, Change):
            self._check_begins_here(fragment, values)
            self._names[fragment] = ""  # if it is broken off, this is no value that has one
            land(values, tensors)
            self._see(fragment, header)
            return
        self._round(fragment, values)
        busy = self._carrier.put(tensors, values, self._rooms[fragment])
        self._keep(fragment, values, header, busy)

    def advance(
        self,
        fragment: int,
        values: Published,
        header: pb.PullHeader,
        start: Fetched,
        mix: float | None = None,
    ) -> None:
        """Make a published value the anchor under a replica that has trained on since ``start``.

        Its parameters move by value - start, which keeps each step that it took once (the
        delay-corrected merge: LOSCAR, arXiv 2605.20866); with ``mix`` they become mix * themselves
        + (1 - mix) * value (Streaming DiLoCo, arXiv 2501.18512). Else as ``adopt``; ``start`` goes
        back to ``scratch``.
        """
        tensors, before, room = self._tensors(fragment), start.here(), self._rooms[fragment]
        values = self._whole(fragment, values)
        self._round(fragment, values)
        if mix is None:
            busy = self._carrier.shift(tensors, values, before, room)
        else:
            busy = self._carrier.blend(tensors, values, mix, room)
            self.scratch.give_back(before.view(np.uint8))
        self._keep(fragment, values, header, busy)

    def rebase(
        self,
        fragment: int,
        values: Published,
        header: pb.PullHeader,
        back: Float32 | None = None,
    ) -> None:
        """Move the replica's progress since the anchor onto a new anchor; else as ``adopt``.

        ``back`` (fp32, flat) is added first, where eager updates have moved the model.
        """
        current = self.current(fragment).here()
        if back is not None:
            current += back
        values = self._whole(fragment, values)
        self._round(fragment, values)
        moved = rebased(in_fp32(values), self.value(fragment), current)
        self.scratch.give_back(current.view(np.uint8))
        self._carrier.put(self._tensors(fragment), moved)
        room = self._rooms[fragment]
        busy = None if room is None else self._carrier.put((), values, room)
        self._keep(fragment, values, header, busy)

    def restore(self, fragment: int) -> None:
        """Write the anchor into the model."""
        tensors, room = self._tensors(fragment), self._rooms[fragment]
        if room is None:
            self._busy[fragment] = self._carrier.put(tensors, self._values[fragment])
        else:
            self._carrier.put_back(tensors, room)

    def current(self, fragment: int) -> Fetched:
        """This rank's parameters as they are (fp32, flat), from ``scratch``."""
        out = self.scratch.take(4 * self.shards[fragment].numel).view(np.float32)
        return self._carrier.fetch(self._tensors(fragment), out)

    def read_into(self, fragment: int, out: Float32) -> None:
        """Write this rank's parameters as they are into ``out`` (fp32, flat)."""
        self._carrier.fetch(self._tensors(fragment), out).here()

    def value(self, fragment: int) -> Float32:
        """The anchor, in fp32 (flat): a copy, or itself, which is not to be changed."""
        if (room := self._rooms[fragment]) is None:
            return in_fp32(self._values[fragment])
        out = np.empty(self.shards[fragment].numel, np.float32)
        return self._carrier.fetch([room.here()], out).here()

    def put(self, fragment: int, values: Float32) -> None:
        """Write values (flat) into the model that are no anchor, and that nobody changes."""
        self._carrier.put(self._tensors(fragment), values)

    def held(self, fragment: int, *, trains_on: bool = False) -> Held | None:
        """The anchor, where it is the published value itself and that is in bf16.

        It stays as it is until another is adopted. Of one on a device a copy is kept, or none.
        ``trains_on``: the parameters will not be the anchor's when the next is.
        """
        values, name = self._values[fragment], self._names[fragment]
        if not (name and values.dtype == np.uint16 and self._holds(fragment, values)):
            return None
        tensors = self._tensors(fragment)
        may_change = not trains_on and self._rooms[fragment] is None and takes_change(tensors)
        return Held(name, values.view(np.uint16), len(tensors) if may_change else None)

    def pseudo_gradient(self, fragment: int, codec: CodecName = "fp32") -> Encoded:
        """anchor - parameters, of the pieces that this rank sends, in memory from ``scratch``.

        Positive where the replica has already descended.
        """
        room, pieces = self._rooms[fragment], self.shards[fragment].sent
        anchor = self._values[fragment] if room is None else room.here()
        parts = [Part(piece.local, anchor[_of(piece)]) for piece in pieces]
        return self._encoded(fragment, parts, codec)

    def parameters(self, fragment: int) -> Encoded:
        """The parameters, of the pieces that this rank sends, in memory from ``scratch``."""
        return self._encoded(fragment, [Part(p.local) for p in self.shards[fragment].sent])

    def gradients(self, fragment: int) -> Encoded:
        """The gradients, as ``parameters``; zeros where none is."""
        return self._encoded(fragment, [Part(_gradient(p)) for p in self.shards[fragment].sent])

    def _encoded(self, fragment: int, parts: Sequence[Part], codec: CodecName = "fp32") -> Encoded:
        spoken = codec_of(CODEC_BY_NAME[codec])
        out = self.scratch.take(spoken.size(self.shards[fragment].numel_sent))
        return Encoded(out, codec, self._carrier.encode(parts, spoken, out))

    def write_gradients(self, fragment: int, values: Float32 | UInt16) -> None:
        """Replace the gradients by ``values`` (flat), which go back to ``scratch``.

        Parameters without a gradient get one. All replicas must step with the same gradients: a
        zero is not the same as none, since moments decay and weights do too.
        """
        tensors: list[Tensor] = []
        for piece in self.shards[fragment].pieces:
            if piece.parameter.grad is None:
                piece.parameter.grad = torch.zeros_like(piece.parameter)
            tensors.append(local_part(piece.parameter.grad)[piece.where])
        self.scratch.give_back(values.view(np.uint8), self._carrier.put(tensors, values))

    def parameters_of(self, fragment: int) -> set[nn.Parameter]:
        return {piece.parameter for piece in self.shards[fragment].pieces}

    def _tensors(self, fragment: int) -> list[Tensor]:
        return [piece.local for piece in self.shards[fragment].pieces]

    def _whole(self, fragment: int, values: Published) -> Float32 | UInt16:
        """A published value itself; made of a change to the anchor it is from ``scratch``."""
        if isinstance(values, Change):
            self._check_begins_here(fragment, values)
            return values.made(self.scratch.take(values.held.nbytes).view(np.uint16))
        return values

    def _check_begins_here(self, fragment: int, change: Change) -> None:
        is_here = np.may_share_memory(change.held, self._values[fragment])
        assert is_here, "a change of another anchor"

    def _round(self, fragment: int, values: Float32 | UInt16) -> None:
        """Round a published value, in place, as parameters of a lower precision will be.

        What rounding loses is no progress of the replica, so the anchor must not have it.
        """
        if not self._holds(fragment, values):
            for tensor, part in along(self._tensors(fragment), as_tensor(values)):
                part.copy_(part.to(tensor.dtype))

    def _holds(self, fragment: int, values: Float32 | UInt16) -> bool:
        """Whether the parameters hold any values of this type as they are."""
        kept_by = _KEEPS_BF16 if values.dtype == np.uint16 else _KEEPS_FP32
        return all(piece.parameter.dtype in kept_by for piece in self.shards[fragment].pieces)

    def _keep(
        self, fragment: int, fresh: Float32 | UInt16, header: pb.PullHeader, busy: Event | None
    ) -> None:
        self.scratch.give_back(self._values[fragment].view(np.uint8), self._busy[fragment])
        is_copy = self.keeps_copies and self._holds(fragment, fresh)
        if self._rooms[fragment] is not None and not is_copy:
            if busy is None:
                self.scratch.give_back(fresh.view(np.uint8))
            else:
                self._leaving.append((fresh.view(np.uint8), busy))
            fresh, busy = np.empty(0, np.float32), None
        self._values[fragment], self._busy[fragment] = fresh, busy
        self._see(fragment, header)

    def _see(self, fragment: int, header: pb.PullHeader) -> None:
        self._names[fragment] = header.value
        self.revisions[fragment], self.epochs[fragment] = header.revision, header.epoch


def _of(piece: Piece) -> slice:
    return slice(piece.start, piece.start + piece.box.numel)


def _gradient(piece: Piece) -> Tensor:
    gradient = piece.parameter.grad
    if gradient is None:
        return torch.zeros(1).expand(piece.box.numel)
    return local_part(gradient)[piece.where]
