"""While modules are loaded nothing is collected, and what they made is not looked at again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from syncline.uncollected import uncollected


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_what_is_made_inside_is_frozen() -> None:
    before = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


def test_an_error_freezes_nothing_and_collects_again() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_who_has_it_off_keeps_it_off() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
