"""Tensors, boxes, fragments and the fingerprint, from docs/protocol.md section 4.

Parameters are a list of arrays, one for each tensor of the layout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from independent.numbers import Array

Arrays = list[Array]


@dataclass(frozen=True, slots=True)
class Box:
    """``sizes[d]`` elements from ``offsets[d]`` in each dimension of tensor number ``tensor``."""

    tensor: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, arrays: Sequence[Array]) -> Array:
        """The part of its tensor, as a view."""
        where = tuple(slice(o, o + s) for o, s in zip(self.offsets, self.sizes, strict=True))
        return arrays[self.tensor][(*where, ...)]


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Fragment:
    name: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    tensors: tuple[Tensor, ...]
    fragments: tuple[Fragment, ...]
    frozen_sha256: str = ""

    def arrays(self, fill: float = 0.0) -> Arrays:
        """fp32 arrays of the tensors' shapes."""
        return [np.full(tensor.shape, fill, np.float32) for tensor in self.tensors]

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the layout's JSON text."""
        text = json.dumps(
            {
                "tensors": [
                    [t.name, list(t.shape), t.dtype, sorted(t.aliases)] for t in self.tensors
                ],
                "fragments": [
                    [f.name, [[b.tensor, list(b.offsets), list(b.sizes)] for b in f.boxes]]
                    for f in self.fragments
                ],
                "frozen_sha256": self.frozen_sha256,
            },
            ensure_ascii=True,
            separators=(",", ":"),
        )
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @classmethod
    def of_message(cls, message: Any) -> Layout:
        """From a ``Layout`` message."""
        return cls(
            tuple(
                Tensor(t.name, tuple(t.shape), tuple(t.aliases), t.dtype) for t in message.tensors
            ),
            tuple(
                Fragment(
                    f.name,
                    tuple(Box(b.tensor, tuple(b.offsets), tuple(b.sizes)) for b in f.boxes),
                )
                for f in message.fragments
            ),
            message.frozen_sha256,
        )


def flat(arrays: Sequence[Array], boxes: Sequence[Box]) -> Array:
    """The boxes one after another, each in row-major order: [n], in the arrays' own dtype."""
    if not boxes:
        return np.zeros(0, np.float32)
    return np.concatenate([box.of(arrays).ravel() for box in boxes])


def write(arrays: Sequence[Array], boxes: Sequence[Box], values: Array) -> None:
    """Put [n] where ``flat`` would take it from."""
    start = 0
    for box in boxes:
        part = box.of(arrays)
        part[...] = values[start : start + part.size].reshape(part.shape)
        start += part.size
    assert start == values.size, f"{values.size} elements for boxes of {start}"
