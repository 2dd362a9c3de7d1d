"""JSON bodies, read strictly: what Python's reader takes and nobody behind it can keep.

Half a surrogate pair, a whole number of more than 64 bits, a thousand brackets: each passes
Python's reader and then breaks a table, an answer or a scrape. They are refused here, once for
every route and before anything is validated (RFC 7493 asks senders for about the same). Large
bodies are read one at a time beside the event loop, and half of the time at most: heartbeats go
on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute

from syncline_control.intake import SMALL_BYTES

DEPTH_MAX = 64
"""Objects and lists inside each other; a job's configuration has three."""

PATH_SHOWN = 5
"""Parts of the place of what is refused."""

KEYS_MAX = 10_000
"""Of one object. Whoever validates it says of each key that it is unknown, at a high price."""

WHOLE_MAX = (1 << 63) - 1

Container = dict[str, Any] | list[Any]


def read(body: bytes) -> Any:
    """Return the value that the text stands for.

    Raises:
        json.JSONDecodeError: it is not UTF-8 or not JSON, or it holds what cannot be kept; the
            message says where.
    """
    try:
        value = json.loads(body.decode())
        _check([value], 0)
    except _Unfit as unfit:
        raise _refused(f"{unfit.named()} {unfit.why}") from None
    except json.JSONDecodeError:
        raise
    except UnicodeError:
        raise _refused("a text is not valid Unicode") from None
    except RecursionError:
        raise _refused("its parts are nested too deeply") from None
    except ValueError:  # Python's bound on the digits of one number
        raise _refused("a number has too many digits") from None
    return value


class StrictRoute(APIRoute):
    """A route whose body is read by ``read``; give it to routers as ``route_class``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= SMALL_BYTES:
            return read(body)
        reading: asyncio.Lock = self.app.state.reading
        await reading.acquire()
        began = time.perf_counter()
        try:
            return await asyncio.to_thread(read, body)
        finally:
            # Python's reader lets no other thread run: everybody else gets as much time as it took.
            pause_s = time.perf_counter() - began
            asyncio.get_running_loop().call_later(pause_s, reading.release)


class _Unfit(Exception):
    """Something in a body cannot be kept; whoever it passes on its way adds where it was."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str | int] = []
        """From the inside out; the last is the place in the list of the whole."""

    def named(self) -> str:
        parts = self.path[-2::-1][:PATH_SHOWN]
        return ".".join(str(part) for part in parts) or "the whole"


def _check(inside: Container, depth: int) -> None:
    """
    Raises:
        _Unfit: a number is too large, an object too wide, or the value too deep.
        UnicodeError: a text is not Unicode.
    """
    if depth > DEPTH_MAX:
        raise _Unfit(f"is nested more than {DEPTH_MAX} times")
    parts: Iterable[tuple[str | int, Any]]
    if isinstance(inside, dict):
        if len(inside) > KEYS_MAX:
            raise _Unfit(f"has more than {KEYS_MAX:,} keys")
        for key in inside:
            key.encode()
        parts = inside.items()
    else:
        parts = enumerate(inside)
    for key, one in parts:
        try:
            if isinstance(one, str):
                one.encode()
            elif isinstance(one, int):
                if abs(one) > WHOLE_MAX:
                    raise _Unfit("is a whole number of more than 64 bits")
            elif isinstance(one, (dict, list)):
                _check(cast(Container, one), depth + 1)
        except _Unfit as unfit:
            unfit.path.append(key)
            raise


def _refused(why: str) -> json.JSONDecodeError:
    return json.JSONDecodeError(why, "", 0)
