"""A model -> the run's layout, and the part of it that this rank holds.

Who needs a DTensor's own part or its whole asks here (``local_part``, ``whole``).
Reads the model; changes nothing in it. The layout is the same however the model is sharded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import (
    _StridedShard,  # pyright: ignore[reportPrivateUsage]
)

from syncline.blocks import CanonicalNames, Groups
from syncline.core.boxes import local_box, overlap, senders
from syncline.core.cutting import cut
from syncline.fitting import check_memory, check_values
from syncline.ranks import Ranks
from syncline_proto.errors import ConfigError, LayoutMismatch
from syncline_proto.layout import DTYPES, Box, Layout, TensorSpec


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a fragment that lies in one parameter of this rank.

    ``where`` cuts it out of the parameter's local tensor, and is () where it is all of that;
    ``start`` is where it begins in the shard's flat vector.
    """

    parameter: nn.Parameter
    where: tuple[slice, ...]
    box: Box
    start: int
    sends: bool
    """False where another rank of this replica holds the same values and sends them."""

    @property
    def local(self) -> Tensor:
        """A view of the values; detached."""
        return local_part(self.parameter)[self.where]


@dataclass(frozen=True, slots=True)
class RankShard:
    """What this rank holds of one fragment: its pieces, one after another, as a flat vector."""

    pieces: tuple[Piece, ...]
    numel: int

    @property
    def boxes(self) -> list[Box]:
        return [piece.box for piece in self.pieces]

    @property
    def sent(self) -> tuple[Piece, ...]:
        return tuple(piece for piece in self.pieces if piece.sends)

    @property
    def numel_sent(self) -> int:
        return sum(piece.box.numel for piece in self.sent)


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The run's layout, this rank's shard of each fragment, and the names that own tensors."""

    layout: Layout
    shards: tuple[RankShard, ...]
    parameters: tuple[nn.Parameter, ...]
    """By the number of the tensor in the layout."""


@dataclass(frozen=True, slots=True)
class OwnBox:
    """The box of a tensor that this rank holds, and whether it is the one that sends it."""

    box: Box
    sends: bool


@dataclass(frozen=True, slots=True)
class Outline:
    """A model as it was when this was made, before anybody cuts it into fragments."""

    specs: tuple[TensorSpec, ...]
    frozen_sha256: str
    parameters: tuple[nn.Parameter, ...]
    groups: Groups
    held: tuple[OwnBox, ...]
    """By the number of the tensor, as ``parameters``."""

    def cut(self, blocks_per_fragment: int = 1) -> ModelLayout:
        """Cut it as the run has it (``RunSettings.blocks_per_fragment``)."""
        layout = _layout(self.specs, self.groups, blocks_per_fragment, self.frozen_sha256)
        shards = tuple(_shard(part.boxes, self.parameters, self.held) for part in layout.fragments)
        return ModelLayout(layout, shards, self.parameters)


def outline(model: nn.Module, ranks: Ranks) -> Outline:
    """Look at a model as it is now. Collective.

    Persistent floating-point buffers count as frozen; ``buffers`` sees that they stay so.

    Raises:
        ConfigError: the model has something that cannot be synchronised; it is named.
        LayoutMismatch: the ranks do not describe the same model; on all ranks.
    """
    names = CanonicalNames(model)
    for raw, parameter in model.named_parameters():
        check_values(names(raw), parameter)
    _check_no_running_statistics(model, names)
    tied: dict[nn.Parameter, list[str]] = {}
    for raw, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(parameter, []).append(names(raw))
    trainable = [(p, tied[p]) for p in tied if p.requires_grad]
    if not trainable:
        raise ConfigError("The model has no parameter that requires a gradient.")
    specs = tuple(
        TensorSpec(own[0], tuple(p.shape), _dtype(own[0], p), tuple(sorted(own[1:])))
        for p, own in trainable
    )
    parameters = tuple(p for p, _ in trainable)
    check_memory((spec.name, local_part(p)) for spec, p in zip(specs, parameters, strict=True))
    boxes = [box_of(i, specs[i].name, p, ranks) for i, p in enumerate(parameters)]
    frozen_sha256 = tensors_sha256(frozen_tensors(model))
    groups = Groups(model, names)
    layout = _layout(specs, groups, 1, frozen_sha256)
    _check_alike(ranks, layout.fingerprint())  # however it will be cut
    first, me = senders_of(boxes, ranks), ranks.index
    held = tuple(OwnBox(box, sent[me] == me) for box, sent in zip(boxes, first, strict=True))
    return Outline(specs, frozen_sha256, parameters, groups, held)


def _layout(
    specs: tuple[TensorSpec, ...], groups: Groups, blocks_per_fragment: int, frozen_sha256: str
) -> Layout:
    of_tensors = [groups.of(spec.name, blocks_per_fragment) for spec in specs]
    fragments = cut([spec.shape for spec in specs], of_tensors)
    for empty in (fragment for fragment in fragments if not fragment.numel):
        raise ConfigError(
            f"{specs[empty.boxes[0].tensor].name} is empty, and nothing is with it that could be "
            "synchronised; remove it, or set its requires_grad to False."
        )
    return Layout(specs, fragments, frozen_sha256)


def _check_alike(ranks: Ranks, fingerprint: str) -> None:
    """See that all ranks described the same model, by the fingerprints of its layout.

    Raises:
        LayoutMismatch: they did not; on all ranks.
    """
    words = memoryview(bytes.fromhex(fingerprint)).cast("q").tolist()
    told = ranks.gather(words)
    others = [rank for rank, words in enumerate(told) if words != told[0]]
    if others:
        raise LayoutMismatch(
            f"Rank {others[0]} of this replica has another model than rank 0; "
            "build the same one on every rank."
        )


def senders_of(boxes: Sequence[Box], ranks: Ranks) -> tuple[tuple[int, ...], ...]:
    """By box, and by rank: who sends what that rank holds there, whatever the meshes. Collective.

    All ranks have equally many boxes, of the same tensors.
    """
    every = ranks.gather([number for box in boxes for number in (*box.offsets, *box.sizes)])
    told = [iter(numbers) for numbers in every]
    found: list[tuple[int, ...]] = []
    for box in boxes:
        dims = len(box.sizes)
        held = [Box(box.tensor, tuple(islice(t, dims)), tuple(islice(t, dims))) for t in told]
        found.append(senders(held))
    return tuple(found)


def box_of(index: int, name: str, parameter: nn.Parameter, ranks: Ranks) -> Box:
    """The part of a parameter that this rank holds.

    Raises:
        ConfigError: it lies in a way that no box can tell.
    """
    shape = tuple(parameter.shape)
    if not isinstance(parameter, DTensor):
        return Box(index, (0,) * len(shape), shape)
    mesh = parameter.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigError(f"{name} lies on a device mesh that leaves out rank {ranks.index}.")
    cuts: list[tuple[int, int, int]] = []
    late: list[tuple[int, int, int]] = []
    for placement, ways, at in zip(parameter.placements, mesh.shape, coordinate, strict=True):
        if type(placement) is Shard:
            cuts.append((placement.dim, ways, at))
        elif isinstance(placement, _StridedShard):  # FSDP2 cuts what tensor parallelism has cut
            late.append((placement.dim, ways, at))
        elif not isinstance(placement, Replicate):
            raise ConfigError(
                f"{name} is placed as {placement}, and only what is sharded or replicated can be "
                "synchronised."
            )
    box = local_box(index, shape, [*cuts, *reversed(late)])
    assert box.sizes == tuple(local_part(parameter).shape) or not box.numel, name
    return box


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor: a detached view that shares its memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def settle_gradient(parameter: Tensor) -> None:
    """Let a gradient lie as its parameter does. Collective where it does not.

    With sequence parallelism each rank may have its part of a sum that nobody has made yet.
    """
    gradient = parameter.grad
    if not (isinstance(parameter, DTensor) and isinstance(gradient, DTensor)):
        return
    if gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor, detached. Collective if it is sharded."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def frozen_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What belongs to the model and no training changes, by canonical name.

    Parameters that require no gradient, and persistent floating-point buffers.
    """
    names = CanonicalNames(model)
    frozen = {names(raw): p for raw, p in model.named_parameters() if not p.requires_grad}
    return frozen | persistent_buffers(model)


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The model's floating-point buffers that are saved with it, by canonical name."""
    saved = saved_buffers(model).items()
    return {name: b for name, b in saved if b.is_floating_point() or b.is_complex()}


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The model's buffers that are saved with it, of any type, by canonical name."""
    names = CanonicalNames(model)
    return {
        names(f"{prefix}.{name}" if prefix else name): buffer
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }


def tensors_sha256(tensors: dict[str, Tensor]) -> str:
    """SHA-256 (hex) over name, dtype, shape and bytes of each tensor, by name; "" for none.

    One whole tensor at a time is on this rank, so the hash does not depend on the sharding.
    Collective if they are sharded.
    """
    if not tensors:
        return ""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = whole(tensors[name])
        dtype = str(value.dtype).removeprefix("torch.")
        digest.update(f"{name}\0{dtype}\0{list(value.shape)}\0".encode())
        flat = value.cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_no_running_statistics(model: nn.Module, names: CanonicalNames) -> None:
    """Refuse them before anybody joins: a run's layout, with their hash, is for good."""
    saved = persistent_buffers(model)
    for prefix, module in model.named_modules():
        name = names(f"{prefix}.running_mean" if prefix else "running_mean")
        # So are they called in all norms of torch.nn.
        if module.training and getattr(module, "track_running_stats", False) and name in saved:
            raise ConfigError(
                f"The buffer {name} changes in training, and replicas, which exchange parameters "
                "only, would drift apart in it; set track_running_stats=False, put its layer into "
                "eval mode, or register it with persistent=False."
            )


def _dtype(name: str, parameter: nn.Parameter) -> str:
    dtype = str(parameter.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ConfigError(f"{name} is {dtype}; trainable parameters must be one of {DTYPES}.")
    return dtype


def _shard(
    boxes: Iterable[Box], parameters: Sequence[nn.Parameter], held: Sequence[OwnBox]
) -> RankShard:
    pieces: list[Piece] = []
    start = 0
    for part, mine in _overlaps(boxes, held):
        origin = mine.box.offsets
        cuts = tuple(
            slice(begin - zero, begin - zero + size)
            for begin, zero, size in zip(part.offsets, origin, part.sizes, strict=True)
        )
        where = () if part.sizes == mine.box.sizes else cuts
        pieces.append(Piece(parameters[part.tensor], where, part, start, mine.sends))
        start += part.numel
    return RankShard(tuple(pieces), start)


def _overlaps(boxes: Iterable[Box], held: Sequence[OwnBox]) -> Iterator[tuple[Box, OwnBox]]:
    for box in boxes:
        mine = held[box.tensor]
        part = overlap(box, mine.box)
        if part is not None:
            yield part, mine
