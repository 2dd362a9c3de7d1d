"""What all short forms have in common: how many examples there are, and the loop that they live in.

Knows nothing of what is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol, TypeVar

from hypothesis import HealthCheck, settings


class Place(Protocol):
    """Where examples are met."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


SomePlace = TypeVar("SomePlace", bound=Place)


@contextlib.contextmanager
def at_work(place: SomePlace) -> Iterator[tuple[asyncio.Runner, SomePlace]]:
    """A place for many examples, and the loop that it lives in."""
    with asyncio.Runner() as runner:
        try:
            runner.run(place.start())
            yield runner, place
        finally:
            runner.run(place.stop())


def always_the_same(examples: int) -> settings:
    """So many examples, in each run the same ones."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
