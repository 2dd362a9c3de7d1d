"""JSON bodies, read strictly: what Python's reader takes and nobody behind it can keep.

Half a surrogate pair, a whole number of more than 64 bits, a thousand brackets: each passes
Python's reader and then breaks a table, an answer or a scrape. They are refused here, once for
every route and before anything is validated (RFC 7493 asks senders for about the same).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute

DEPTH_MAX = 64
"""Objects and lists inside each other; a job's configuration has three."""

WHOLE_MAX = (1 << 63) - 1


def read(body: bytes) -> Any:
    """Return the value that the text stands for.

    Raises:
        json.JSONDecodeError: it is not UTF-8 or not JSON, or it holds what cannot be kept; the
            message says where.
    """
    try:
        value = json.loads(body.decode())
        _check(value, ())
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
        return read(await self.body())


def _check(value: Any, path: tuple[str | int, ...]) -> None:
    """Raises:
    json.JSONDecodeError: a number is too large or the value too deep.
    UnicodeError: a text is not Unicode.
    """
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, int):
        if abs(value) > WHOLE_MAX:
            raise _refused(f"{_named(path)} is a whole number of more than 64 bits")
    elif isinstance(value, dict | list):
        if len(path) >= DEPTH_MAX:
            raise _refused(f"{_named(path[:3])} is nested more than {DEPTH_MAX} times")
        if isinstance(value, list):
            for i, one in enumerate(cast(list[Any], value)):
                _check(one, (*path, i))
            return
        for key, one in cast(dict[str, Any], value).items():
            key.encode()
            _check(one, (*path, key))


def _named(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path) or "the whole"


def _refused(why: str) -> json.JSONDecodeError:
    return json.JSONDecodeError(why, "", 0)
