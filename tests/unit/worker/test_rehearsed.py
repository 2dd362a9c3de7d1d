"""What is rehearsed before a replica joins, in any user's process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from syncline.rehearsed import rehearse


@pytest.fixture
def others_defaults() -> Iterator[None]:
    """As scripts set them to make a model: of another type, and elsewhere."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.usefixtures("others_defaults")
def test_a_rehearsal_does_not_go_by_what_torch_makes_by_default() -> None:
    rehearse()
