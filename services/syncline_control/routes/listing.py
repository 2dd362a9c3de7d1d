"""Long lists, read and written one at a time: leases are renewed in between, and memory is bounded.

They are written by a thread, element by element, so that the loop comes to its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

from fastapi import Depends, Request, Response
from pydantic import BaseModel


class Listing:
    """Whose turn it is to be answered with a long list."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def answer(
        self,
        read: Callable[[], Awaitable[Sequence[BaseModel]]],
        without: frozenset[str] = frozenset(),
    ) -> Response:
        """Answer with what ``read`` finds, but for the fields ``without``."""
        async with self._turn:
            text = await asyncio.to_thread(_text, await read(), without)
        return Response(text, media_type="application/json")


def _text(found: Sequence[BaseModel], without: frozenset[str]) -> bytes:
    parts = (one.model_dump_json(exclude=set(without)).encode() for one in found)
    return b"[" + b",".join(parts) + b"]"


async def _listing(request: Request) -> Listing:
    return request.app.state.listing


InTurn = Annotated[Listing, Depends(_listing)]
