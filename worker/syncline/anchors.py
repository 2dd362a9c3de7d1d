"""The anchors: each fragment as last received, this rank's shard of it, on the CPU.

Writes published values (flat; fp32, or bf16 as bits) into the model, and what is in the model into
payloads, shard by shard. Knows nothing of services: the training thread calls, and nobody else
changes what is here. Other threads read ``revisions`` (the heartbeat's) and what is ``held`` (an
exchange's), and take from ``scratch``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from syncline.core.progress import corrected, rebased
from syncline.gathering import Part, Window
from syncline.layout import Piece, RankShard, local_part
from syncline.scratch import Scratch
from syncline_proto.codec import CODEC_BY_NAME, Float32, UInt8, UInt16, codec_of
from syncline_proto.settings import CodecName
from syncline_proto.v1 import sync_pb2 as pb

_KEEPS_FP32 = (torch.float32, torch.float64)
_KEEPS_BF16 = (*_KEEPS_FP32, torch.bfloat16)
"""Parameters that hold any value of fp32, of bf16, as it is."""


@dataclass(frozen=True, slots=True)
class Held:
    """A published value, bit for bit; ``name`` is the service's for it."""

    name: str
    bits: UInt16
    """bf16, flat."""


class Anchors:
    """This rank's anchors, and what is pushed of the model.

    A published value in bf16 is kept in bf16, without loss. What is pushed of a fragment lies
    in memory from ``scratch`` until its result is merged; then the next push may have that.
    """

    def __init__(self, shards: tuple[RankShard, ...], scratch: Scratch) -> None:
        """Payloads are written into ``scratch``; an anchor that has a successor goes there, too."""
        self.shards, self.scratch = shards, scratch
        self.revisions = [0] * len(shards)
        """By fragment; the list keeps its length, so a reader meets whole numbers at any time."""
        self.epochs = [0] * len(shards)
        """Of those revisions."""
        on_gpu = any(piece.parameter.is_cuda for shard in shards for piece in shard.pieces)
        self._values: list[Float32 | UInt16] = [np.empty(0, np.float32) for _ in shards]
        self._names = [""] * len(shards)
        self._window = Window(pinned=on_gpu)

    def adopt(self, fragment: int, values: Float32 | UInt16, header: pb.PullHeader) -> None:
        """Write a published value (flat; bf16 as its bits) into the model and make it the anchor.

        The array is ours from then on: nothing is copied, and the one before goes back to
        ``scratch``. Whoever has its ``held`` must be done with it.
        """
        self._keep(fragment, self._written(fragment, values), header)

    def advance(
        self,
        fragment: int,
        values: Float32 | UInt16,
        header: pb.PullHeader,
        start: Float32,
        mix: float | None = None,
    ) -> None:
        """Make a published value the anchor under a replica that has trained on since ``start``.

        Its parameters move by value - start, which keeps each step that it took once (the
        delay-corrected merge: LOSCAR, arXiv 2605.20866); with ``mix`` they become mix * themselves
        + (1 - mix) * value (Streaming DiLoCo, arXiv 2501.18512). Else as ``adopt``; ``start`` goes
        back to ``scratch``.
        """
        pieces = self.shards[fragment].pieces
        fresh = _tensor(values)
        if not self._holds(fragment, values):
            rounded(pieces, fresh)
        if mix is None:
            move(pieces, torch.from_numpy(corrected(_fp32(values), start)))
        else:
            blend(pieces, fresh, mix)
        self.scratch.give_back(start.view(np.uint8))
        self._keep(fragment, values, header)

    def rebase(self, fragment: int, values: Float32 | UInt16, header: pb.PullHeader) -> None:
        """Move the replica's progress since the anchor onto a new anchor; else as ``adopt``."""
        pieces = self.shards[fragment].pieces
        current = read(pieces, torch.empty(self.shards[fragment].numel)).numpy()
        fresh = self._written(fragment, values)
        moved = rebased(_fp32(fresh), _fp32(self._values[fragment]), current)
        write(pieces, torch.from_numpy(moved))
        self._keep(fragment, fresh, header)

    def restore(self, fragment: int) -> None:
        """Write the anchor into the model."""
        write(self.shards[fragment].pieces, _tensor(self._values[fragment]))

    def current(self, fragment: int) -> Float32:
        """This rank's parameters as they are (fp32, flat), from ``scratch``."""
        out = self.scratch.take(4 * self.shards[fragment].numel).view(np.float32)
        self.read_into(fragment, out)
        return out

    def read_into(self, fragment: int, out: Float32) -> None:
        """Write this rank's parameters as they are into ``out`` (fp32, flat)."""
        read(self.shards[fragment].pieces, torch.from_numpy(out))

    def value(self, fragment: int) -> Float32:
        """The anchor, in fp32 (flat): a copy, or itself, which is not to be changed."""
        return _fp32(self._values[fragment])

    def put(self, fragment: int, values: Float32) -> None:
        """Write values (flat) into the model that are no anchor."""
        write(self.shards[fragment].pieces, torch.from_numpy(values))

    def add(self, fragment: int, by: Float32) -> None:
        """Add to this rank's parameters (flat)."""
        move(self.shards[fragment].pieces, torch.from_numpy(by))

    def held(self, fragment: int) -> Held | None:
        """The anchor, where it is the published value itself and that is in bf16.

        It stays as it is until another is adopted.
        """
        values, name = self._values[fragment], self._names[fragment]
        if not (name and values.dtype == np.uint16 and self._holds(fragment, values)):
            return None
        return Held(name, values.view(np.uint16))

    def pseudo_gradient(self, fragment: int, codec: CodecName = "fp32") -> UInt8:
        """anchor - parameters, of the pieces that this rank sends: a payload, from ``scratch``.

        Positive where the replica has already descended.
        """
        anchor, pieces = self._values[fragment], self.shards[fragment].sent
        parts = (Part(piece.local, _cut(anchor, piece)) for piece in pieces)
        return self._gathered(fragment, parts, codec)

    def parameters(self, fragment: int) -> UInt8:
        """The parameters, of the pieces that this rank sends: fp32, from ``scratch``."""
        parts = (Part(piece.local) for piece in self.shards[fragment].sent)
        return self._gathered(fragment, parts)

    def gradients(self, fragment: int) -> UInt8:
        """The gradients, as ``parameters``; zeros where none is."""
        parts = (Part(_gradient(piece)) for piece in self.shards[fragment].sent)
        return self._gathered(fragment, parts)

    def _gathered(self, fragment: int, parts: Iterable[Part], name: CodecName = "fp32") -> UInt8:
        codec = codec_of(CODEC_BY_NAME[name])
        out = self.scratch.take(codec.size(self.shards[fragment].numel_sent))
        self._window.gather(parts, codec, out)
        return out

    def write_gradients(self, fragment: int, values: Float32) -> None:
        """Replace the gradients by ``values``; parameters without a gradient get one.

        All replicas must step with the same gradients: a zero is not the same as none, since
        moments decay and weights do too.
        """
        flat = torch.from_numpy(values)
        for piece in self.shards[fragment].pieces:
            if piece.parameter.grad is None:
                piece.parameter.grad = torch.zeros_like(piece.parameter)
            local_part(piece.parameter.grad)[piece.where].copy_(_shaped(flat, piece))

    def parameters_of(self, fragment: int) -> set[nn.Parameter]:
        return {piece.parameter for piece in self.shards[fragment].pieces}

    def _written(self, fragment: int, values: Float32 | UInt16) -> Float32 | UInt16:
        """Write a published value into the model, and return what the model now holds of it.

        That is the value itself, but for parameters of a lower precision, whose anchor is rounded
        as they are: what rounding lost is no progress of the replica.
        """
        fresh, pieces = _tensor(values), self.shards[fragment].pieces
        write(pieces, fresh)
        if not self._holds(fragment, values):
            read(pieces, fresh)
        return values

    def _holds(self, fragment: int, values: Float32 | UInt16) -> bool:
        """Whether the parameters hold any values of this type as they are."""
        kept_by = _KEEPS_BF16 if values.dtype == np.uint16 else _KEEPS_FP32
        return all(piece.parameter.dtype in kept_by for piece in self.shards[fragment].pieces)

    def _keep(self, fragment: int, fresh: Float32 | UInt16, header: pb.PullHeader) -> None:
        self.scratch.give_back(self._values[fragment].view(np.uint8))
        self._values[fragment], self._names[fragment] = fresh, header.value
        self.revisions[fragment], self.epochs[fragment] = header.revision, header.epoch


def read(pieces: tuple[Piece, ...], out: Tensor) -> Tensor:
    """Copy the pieces into ``out`` (flat, CPU), one after another."""
    for piece in pieces:
        _shaped(out, piece).copy_(piece.local)
    return out


def write(pieces: tuple[Piece, ...], flat: Tensor) -> None:
    """Copy ``flat`` (CPU) into the pieces' parameters."""
    with torch.no_grad():
        for piece in pieces:
            piece.local.copy_(_shaped(flat, piece))


def move(pieces: tuple[Piece, ...], by: Tensor) -> None:
    """Add ``by`` (flat, CPU) to the pieces' parameters."""
    with torch.no_grad():
        for piece in pieces:
            piece.local.add_(_shaped(by, piece).to(piece.local.device))


def blend(pieces: tuple[Piece, ...], other: Tensor, share: float) -> None:
    """Keep ``share`` of the pieces' parameters, and take the rest from ``other`` (flat, CPU)."""
    with torch.no_grad():
        for piece in pieces:
            local = piece.local
            local.lerp_(_shaped(other, piece).to(local.device, local.dtype), 1 - share)


def rounded(pieces: tuple[Piece, ...], flat: Tensor) -> None:
    """Round ``flat`` (CPU) as the pieces' parameters are, in place."""
    for piece in pieces:
        part = _shaped(flat, piece)
        part.copy_(part.to(piece.parameter.dtype))


def _shaped(flat: Tensor, piece: Piece) -> Tensor:
    return flat[piece.start : piece.start + piece.box.numel].view(piece.box.sizes)


def _cut(flat: Float32 | UInt16, piece: Piece) -> Float32 | UInt16:
    return flat[piece.start : piece.start + piece.box.numel]


def _gradient(piece: Piece) -> Tensor:
    gradient = piece.parameter.grad
    if gradient is None:
        return torch.zeros(1).expand(piece.box.numel)
    return local_part(gradient)[piece.where]


def _fp32(values: Float32 | UInt16) -> Float32:
    return _tensor(values).float().numpy()


def _tensor(values: Float32 | UInt16) -> Tensor:
    """The same memory as a tensor: fp32, or bf16."""
    if values.dtype == np.float32:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
