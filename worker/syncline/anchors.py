"""The anchors: each fragment as last received, this rank's shard of it, on the CPU.

Reads and writes the model's parameters and gradients as flat fp32 vectors, shard by shard. Knows
nothing of services or threads: the training thread calls, and nobody else changes what is here.
Only ``revisions`` is read by another thread, the heartbeat's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from syncline.core.progress import pseudo_gradient, rebased
from syncline.layout import Piece, RankShard, local_part
from syncline_proto.codec import Float32, UInt16
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
    """This rank's anchors and pseudo-gradients.

    A published value in bf16 is kept in bf16, without loss. The fp32 buffer of a fragment holds
    what is pushed of it from the moment of the push until the result is merged; then it is free for
    the next one, so pushes need no memory of their own.
    """

    def __init__(self, shards: tuple[RankShard, ...]) -> None:
        self.shards = shards
        self.revisions = [0] * len(shards)
        """By fragment; the list keeps its length, so a reader meets whole numbers at any time."""
        self.epochs = [0] * len(shards)
        """Of those revisions."""
        on_gpu = any(piece.parameter.is_cuda for shard in shards for piece in shard.pieces)
        self._values = [torch.empty(0) for _ in shards]
        self._names = [""] * len(shards)
        self._deltas = [torch.empty(shard.numel, pin_memory=on_gpu) for shard in shards]

    def adopt(self, fragment: int, values: Float32 | UInt16, header: pb.PullHeader) -> None:
        """Write a published value (flat; bf16 as its bits) into the model and make it the anchor.

        The array is ours from then on: nothing is copied, and the anchor before is let go.
        """
        self._keep(fragment, self._written(fragment, values), header)

    def rebase(self, fragment: int, values: Float32 | UInt16, header: pb.PullHeader) -> None:
        """Move the replica's progress since the anchor onto a new anchor; else as ``adopt``."""
        pieces = self.shards[fragment].pieces
        current = read(pieces, torch.empty(self.shards[fragment].numel))
        fresh = self._written(fragment, values)
        write(pieces, rebased(fresh, self._values[fragment].float(), current))
        self._keep(fragment, fresh, header)

    def restore(self, fragment: int) -> None:
        """Write the anchor into the model."""
        write(self.shards[fragment].pieces, self._values[fragment])

    def held(self, fragment: int) -> Held | None:
        """The anchor, where it is the published value itself and that is in bf16.

        It stays as it is.
        """
        values, name = self._values[fragment], self._names[fragment]
        if not (name and values.dtype == torch.bfloat16 and self._holds(fragment, values)):
            return None
        return Held(name, _array(values).view(np.uint16))

    def pseudo_gradient(self, fragment: int) -> Float32:
        """anchor - parameters, of the pieces that this rank sends (fp32, flat).

        The array stays as it is until the next call for this fragment.
        """
        shard = self.shards[fragment]
        anchor, delta = _array(self._values[fragment]), self._deltas[fragment].numpy()
        for piece in shard.pieces:
            where = slice(piece.start, piece.start + piece.box.numel)
            into = delta[where]
            pseudo_gradient(anchor[where], _fp32(piece, into), out=into)
        return sent(shard, self._deltas[fragment])

    def parameters(self, fragment: int) -> Float32:
        """The parameters' values, of the pieces that this rank sends (fp32, flat)."""
        shard = self.shards[fragment]
        return sent(shard, read(shard.pieces, self._deltas[fragment]))

    def gradients(self, fragment: int) -> Float32:
        """The gradients, of the pieces that this rank sends (fp32, flat); zeros where none is."""
        shard = self.shards[fragment]
        flat = self._deltas[fragment]
        for piece in shard.pieces:
            gradient = piece.parameter.grad
            into = _cut(flat, piece)
            into.zero_() if gradient is None else into.copy_(local_part(gradient)[piece.where])
        return sent(shard, flat)

    def write_gradients(self, fragment: int, values: Float32) -> None:
        """Replace the gradients by ``values``; parameters without a gradient get one.

        All replicas must step with the same gradients: a zero is not the same as none, since
        moments decay and weights do too.
        """
        flat = torch.from_numpy(values)
        for piece in self.shards[fragment].pieces:
            if piece.parameter.grad is None:
                piece.parameter.grad = torch.zeros_like(piece.parameter)
            local_part(piece.parameter.grad)[piece.where].copy_(_cut(flat, piece))

    def parameters_of(self, fragment: int) -> set[nn.Parameter]:
        return {piece.parameter for piece in self.shards[fragment].pieces}

    def _written(self, fragment: int, values: Float32 | UInt16) -> Tensor:
        """Write a published value into the model, and return what the model now holds of it.

        That is the value itself, but for parameters of a lower precision, whose anchor is rounded
        as they are: what rounding lost is no progress of the replica.
        """
        fresh, pieces = _tensor(values), self.shards[fragment].pieces
        write(pieces, fresh)
        return fresh if self._holds(fragment, fresh) else read(pieces, fresh)

    def _holds(self, fragment: int, values: Tensor) -> bool:
        """Whether the parameters hold any values of this type as they are."""
        kept_by = _KEEPS_BF16 if values.dtype == torch.bfloat16 else _KEEPS_FP32
        return all(piece.parameter.dtype in kept_by for piece in self.shards[fragment].pieces)

    def _keep(self, fragment: int, fresh: Tensor, header: pb.PullHeader) -> None:
        self._values[fragment], self._names[fragment] = fresh, header.value
        self.revisions[fragment], self.epochs[fragment] = header.revision, header.epoch


def read(pieces: tuple[Piece, ...], out: Tensor) -> Tensor:
    """Copy the pieces into ``out`` (flat, CPU), one after another."""
    for piece in pieces:
        _cut(out, piece).copy_(piece.local)
    return out


def write(pieces: tuple[Piece, ...], flat: Tensor) -> None:
    """Copy ``flat`` (CPU) into the pieces' parameters."""
    with torch.no_grad():
        for piece in pieces:
            piece.local.copy_(_cut(flat, piece))


def sent(shard: RankShard, flat: Tensor) -> Float32:
    """The part of a shard's flat vector that this rank sends; a view where that is all of it."""
    parts = shard.sent
    if len(parts) == len(shard.pieces):
        return flat.numpy()
    if not parts:
        return np.empty(0, np.float32)
    return torch.cat([_cut(flat, piece).reshape(-1) for piece in parts]).numpy()


def _cut(flat: Tensor, piece: Piece) -> Tensor:
    return flat[piece.start : piece.start + piece.box.numel].view(piece.box.sizes)


def _fp32(piece: Piece, room: Float32) -> Float32:
    """A piece's values as they lie in memory, flat; else, where they are not such, in ``room``."""
    local = piece.local
    if local.is_cpu and local.dtype == torch.float32 and local.is_contiguous():
        return local.numpy().reshape(-1)
    torch.from_numpy(room).view(piece.box.sizes).copy_(local)
    return room


def _array(values: Tensor) -> Float32 | UInt16:
    """A tensor's memory (CPU, fp32 or bf16) as an array; bf16 as its bits."""
    if values.dtype == torch.float32:
        return values.numpy()
    return values.view(torch.int16).numpy().view(np.uint16)


def _tensor(values: Float32 | UInt16) -> Tensor:
    if values.dtype == np.float32:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
