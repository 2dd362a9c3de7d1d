"""How an inner loop of ours is compiled: for this machine, one pass over memory, no Python lock.

numpy goes through memory once for each operation, and a thread that calls it lets go of Python's
lock and takes it again each time: several threads at once spent as long on that as on arithmetic. A
loop that does all while a value is in a register takes a third of the time (`benchmarks/loops.py`).

What is compiled is kept by numba: beside the source, else in the user's cache folder, or in
NUMBA_CACHE_DIR; where nothing can be kept, each process compiles anew, which takes some seconds.
Loops round as numpy does, operation by operation: nothing is contracted or put in another order,
but for sums that say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]

# numba comes without types for most of it; this file is the only one that touches it.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

F = TypeVar("F", bound=Callable[..., Any])


def read(element: str) -> str:
    """The type of a flat array that a loop only reads; it may lie anywhere in memory."""
    return f"Array({element}, 1, 'C', readonly=True, aligned=False)"


def written(element: str) -> str:
    """The type of a flat array that a loop may write to."""
    return f"Array({element}, 1, 'C')"


def compiled(result: str, *arguments: str, is_sum: bool = False) -> Callable[[F], F]:
    """Compile a function of numbers and flat arrays, when its module is loaded.

    ``result`` and ``arguments`` are numba's names of types. ``is_sum``: additions may be done in
    another order than they are written in, so that several go at once.
    """
    signature = f"{result}({', '.join(arguments)})"
    fast = {"reassoc", "nsz"} if is_sum else False

    def compile_it(function: F) -> F:
        try:
            made = numba.njit(signature, nogil=True, cache=True, fastmath=fast)(function)
        except RuntimeError:  # there is no place for a cache
            made = numba.njit(signature, nogil=True, fastmath=fast)(function)
        return cast(F, made)

    return compile_it
