"""Moving a replica's progress: exact to the ulp where it must be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from syncline.core.progress import pseudo_gradient, rebased

VALUES = hnp.arrays(np.float32, 16, elements=st.floats(-1e6, 1e6, width=32))


def ulp(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One unit in the last place of max(|a|, |b|)."""
    return np.spacing(np.maximum(np.abs(a), np.abs(b)))


@given(VALUES, VALUES)
def test_plain_averaging_of_one_replica_stays_within_one_ulp(
    anchor: np.ndarray, current: np.ndarray
) -> None:
    """What the service does with lr 1 and no momentum: anchor - (anchor - current)."""
    delta = current.copy()
    pseudo_gradient(anchor, delta, out=delta)
    merged = anchor - delta
    assert (np.abs(merged.astype(np.float64) - current) <= ulp(anchor, current)).all()


@given(VALUES, VALUES, VALUES)
def test_rebasing_keeps_the_progress_up_to_rounding(
    new: np.ndarray, old: np.ndarray, current: np.ndarray
) -> None:
    moved = rebased(new, old, current).astype(np.float64)
    exact = new.astype(np.float64) + (current.astype(np.float64) - old)
    room = ulp(current, old) + ulp(new, exact.astype(np.float32)) + ulp(new, current)
    assert (np.abs(moved - exact) <= room).all()


@given(VALUES, VALUES)
def test_without_progress_a_rebase_is_the_new_anchor(new: np.ndarray, old: np.ndarray) -> None:
    moved = rebased(new, old, old.copy())
    assert (moved == new).all()


@pytest.mark.parametrize("size", [1, 1024, 2500])
def test_a_bf16_anchor_is_subtracted_in_fp32(size: int) -> None:
    rng = np.random.default_rng(size)
    anchor = torch.from_numpy(rng.normal(size=size)).bfloat16()
    current = anchor.float().numpy() * np.float32(1 + 2**-20)
    exact = anchor.float().numpy() - current
    bits = anchor.view(torch.int16).numpy().view(np.uint16)
    assert (pseudo_gradient(bits, current, out=np.empty(size, np.float32)) == exact).all()
    assert (pseudo_gradient(bits, current, out=current) == exact).all()
    assert exact.any()
