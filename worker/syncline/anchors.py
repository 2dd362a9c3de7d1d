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

_KEEPS_BF16 = (torch.float32, torch.bfloat16, torch.float64)
"""Parameters that hold any value of bf16 as it is."""


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
        self._pinned = any(piece.parameter.is_cuda for shard in shards for piece in shard.pieces)
        self._values = [torch.empty(0) for _ in shards]
        self._names = [""] * len(shards)
        self._deltas = [self._buffer(shard.numel) for shard in shards]

    def adopt(self, fragment: int, values: Float32, header: pb.PullHeader) -> None:
        """Write a published value into the model and make it the anchor (fp32, flat)."""
        self._keep(fragment, self._written(fragment, values), header)

    def rebase(self, fragment: int, values: Float32, header: pb.PullHeader) -> None:
        """Move the replica's progress since the anchor onto a new anchor."""
        pieces = self.shards[fragment].pieces
        current = read(pieces, torch.empty(self.shards[fragment].numel))
        fresh = self._written(fragment, values)
        write(pieces, rebased(fresh, self._values[fragment].float(), current))
        self._keep(fragment, fresh, header)

    def restore(self, fragment: int) -> None:
        """Write the anchor into the model."""
        write(self.shards[fragment].pieces, self._values[fragment].float())

    def held(self, fragment: int) -> Held | None:
        """The anchor, where it is the published value itself and that is in bf16.

        It stays as it is until the fragment's next anchor.
        """
        values, name = self._values[fragment], self._names[fragment]
        pieces = self.shards[fragment].pieces
        exact = all(piece.parameter.dtype in _KEEPS_BF16 for piece in pieces)
        if not (name and exact and values.dtype == torch.bfloat16):
            return None
        return Held(name, values.view(torch.int16).numpy().view(np.uint16))

    def pseudo_gradient(self, fragment: int) -> Float32:
        """anchor - parameters, of the pieces that this rank sends (fp32, flat).

        The array stays as it is until the next call for this fragment.
        """
        shard = self.shards[fragment]
        delta = read(shard.pieces, self._deltas[fragment])
        pseudo_gradient(self._values[fragment], delta, out=delta)
        return sent(shard, delta)

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

    def _written(self, fragment: int, values: Float32) -> Tensor:
        """Write a published value into the model, and return what the model now holds of it.

        That is the value itself, but for parameters of a lower precision, whose anchor is rounded
        as they are: what rounding lost is no progress of the replica.
        """
        fresh, pieces = torch.from_numpy(values), self.shards[fragment].pieces
        write(pieces, fresh)
        if all(piece.parameter.dtype == torch.float32 for piece in pieces):
            return fresh
        return read(pieces, fresh)

    def _keep(self, fragment: int, fresh: Tensor, header: pb.PullHeader) -> None:
        in_bf16 = header.codec in (pb.CODEC_BF16, pb.CODEC_INT8)
        dtype = torch.bfloat16 if in_bf16 else torch.float32
        kept = self._values[fragment]
        if kept.dtype != dtype or kept.numel() != fresh.numel():
            kept = self._buffer(fresh.numel(), dtype)
            self._values[fragment] = kept
        kept.copy_(fresh)
        self._names[fragment] = header.value
        self.revisions[fragment], self.epochs[fragment] = header.revision, header.epoch

    def _buffer(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(numel, dtype=dtype, pin_memory=self._pinned)


def read(pieces: tuple[Piece, ...], out: Tensor) -> Tensor:
    """Copy the pieces into ``out`` (fp32, flat, CPU), one after another."""
    for piece in pieces:
        _cut(out, piece).copy_(piece.local)
    return out


def write(pieces: tuple[Piece, ...], flat: Tensor) -> None:
    """Copy ``flat`` (fp32, CPU) into the pieces' parameters."""
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
