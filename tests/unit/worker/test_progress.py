"""Moving a replica's progress: exact to the ulp where it must be."""

from __future__ import annotations

import numpy as np
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
    delta = torch.from_numpy(current.copy())
    pseudo_gradient(torch.from_numpy(anchor), delta, out=delta)
    merged = anchor - delta.numpy()
    assert (np.abs(merged.astype(np.float64) - current) <= ulp(anchor, current)).all()


@given(VALUES, VALUES, VALUES)
def test_rebasing_keeps_the_progress_up_to_rounding(
    new: np.ndarray, old: np.ndarray, current: np.ndarray
) -> None:
    moved = rebased(*map(torch.from_numpy, (new, old, current))).numpy().astype(np.float64)
    exact = new.astype(np.float64) + (current.astype(np.float64) - old)
    room = ulp(current, old) + ulp(new, exact.astype(np.float32)) + ulp(new, current)
    assert (np.abs(moved - exact) <= room).all()


@given(VALUES, VALUES)
def test_without_progress_a_rebase_is_the_new_anchor(new: np.ndarray, old: np.ndarray) -> None:
    moved = rebased(torch.from_numpy(new), torch.from_numpy(old), torch.from_numpy(old.copy()))
    assert (moved.numpy() == new).all()


def test_a_bf16_anchor_is_subtracted_in_fp32() -> None:
    anchor = torch.tensor([1.0, -2.0]).bfloat16()
    current = torch.tensor([1.0 + 2**-20, -2.0 - 2**-20])
    delta = pseudo_gradient(anchor, current, out=torch.empty(2))
    assert delta.tolist() == [-(2**-20), 2**-20]
