"""How many tokens a batch holds, where the user does not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def tokens_in(batch: Any) -> int:
    """Count a batch's tokens: the elements of ``input_ids``, else of the first integer tensor.

    Returns 0 for a batch that has neither.
    """
    if isinstance(batch, Mapping) and isinstance(batch.get("input_ids"), Tensor):
        return batch["input_ids"].numel()
    integers = (t for t in _tensors(batch) if _is_integer(t))
    return next((tensor.numel() for tensor in integers), 0)


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for value in batch:
            yield from _tensors(value)


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
