"""How an inner loop of ours is compiled: for this machine, one pass over memory, no Python lock.

numpy goes through memory once for each operation, and a thread that calls it lets go of Python's
lock and takes it again each time: several threads at once spent half as long on that as on all
arithmetic. A loop that does everything while a value is in a register takes a third of the time.

A loop is compiled when it is first called, within a few seconds, or with all others ahead of that.
What came of it is kept by numba, beside the source, else in the user's cache folder, or in
NUMBA_CACHE_DIR, and then loaded within a tenth of a second; where nothing can be kept, each process
compiles anew. By the loop's own file numba sees whether the loop has changed; by its name, which
holds a hash, whether anything has that is written into it. Loops round as numpy does, operation by
operation: nothing is contracted or put in another order, but for sums that say so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

# numba comes without types for most of it; this file is the only one that touches it.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

F = TypeVar("F", bound=Callable[..., Any])

_all: list[Callable[[], object]] = []
"""What compiles each loop of the modules that have been loaded."""

_inner: set[Callable[..., Any]] = set()
"""Functions that loops call."""


def read(element: str) -> str:
    """The type of a flat array that a loop only reads; it may lie anywhere in memory."""
    return f"Array({element}, 1, 'C', readonly=True, aligned=False)"


def written(element: str) -> str:
    """The type of a flat array that a loop may write to."""
    return f"Array({element}, 1, 'C')"


def inner(function: F) -> F:
    """A function that loops call: it is written into them wherever they do."""
    _inner.add(function)
    return function


def fetch_to_read(values: Any, start: int, offset: int) -> None:
    """Have the processor fetch what lies ``offset`` bytes behind ``values[start]``, in a loop.

    Nothing else comes of it, wherever that is: past the end, too.
    """


def fetch_to_write(values: Any, start: int, offset: int) -> None:
    """As ``fetch_to_read``, for who writes there."""


_FETCHES = {fetch_to_read: 0, fetch_to_write: 1}
"""What the processor does, not Python: by LLVM's number for it."""

_KEPT_IN_ALL_CACHES = 3
"""LLVM's number for where what is fetched is to stay."""


def compiled(
    result: str, *arguments: str, is_sum: bool = False, owns_nothing: bool = False
) -> Callable[[F], F]:
    """A function of numbers and flat arrays, compiled for these types when it is first called.

    ``result`` and ``arguments`` are numba's names of types. ``is_sum``: additions may be done in
    another order than they are written in, so that several go at once. ``owns_nothing``: it makes
    no arrays. Then numba counts nobody's references to those it is given, as it does otherwise for
    each that comes to an inner function within a branch: a tenth of a loop that has many. From any
    thread.
    """
    signature = f"{result}({', '.join(arguments)})"
    options: dict[str, Any] = {"fastmath": {"reassoc", "nsz"} if is_sum else False}
    if owns_nothing:
        options["_nrt"] = False

    def wrapped(function: F) -> F:
        made: Callable[..., Any] | None = None

        def loop() -> Callable[..., Any]:
            nonlocal made
            # Two threads may come to it at once: then both compile, one after the other, the same.
            made = made or _made(function, signature, options)
            return made

        @wraps(function)
        def call(*values: Any) -> Any:
            return loop()(*values)

        _all.append(loop)
        return cast(F, call)

    return wrapped


def compile_all() -> None:
    """Compile the loops of all modules that have been loaded: nobody waits for it later."""
    for loop in _all:
        loop()


def _made(
    function: Callable[..., Any], signature: str, options: dict[str, Any]
) -> Callable[..., Any]:
    import numba  # most of what imports a codec never calls one

    loop = _with_inner(function)
    try:
        return numba.njit(signature, nogil=True, cache=True, **options)(loop)
    except RuntimeError:  # there is no place for a cache
        return numba.njit(signature, nogil=True, **options)(loop)


def _with_inner(function: Callable[..., Any]) -> FunctionType:
    """The function as numba can compile it, with all that it calls written into it.

    So what is constant in a call is constant in what is called, be it the length of a loop.
    """
    import numba

    known: dict[str, Any] = {}
    code = function.__code__
    written_in = [code.co_code.hex(), repr(code.co_consts), repr(code.co_names)]
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value in _inner:
            called = _with_inner(value)
            known[name] = numba.njit(called, inline="always")
            written_in.append(called.__qualname__)
        elif isinstance(value, FunctionType) and value in _FETCHES:
            known[name] = _fetch(_FETCHES[value])
            written_in.append(f"{_FETCHES[value]} {_KEPT_IN_ALL_CACHES}")
        elif not callable(value) and not isinstance(value, ModuleType):
            written_in.append(f"{type(value).__name__} {value!r}")  # a constant
    found = FunctionType(code, {**function.__globals__, **known}, function.__name__)
    hashed = sha256("\n".join(written_in).encode()).hexdigest()[:12]
    found.__qualname__ = f"{function.__qualname__}-{hashed}"  # what numba names its files by
    return found


def _fetch(is_write: int) -> Any:
    """LLVM's ``prefetch`` as numba can call it."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    of_data = 1

    def written_in(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, given[0])
        place = builder.bitcast(builder.gep(array.data, [given[1]]), byte)
        place = builder.gep(place, [given[2]])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        hints = [number(hint) for hint in (is_write, _KEPT_IN_ALL_CACHES, of_data)]
        builder.call(fetch, [place, *hints])
        return context.get_dummy_value()

    def fetch(_: Any, values: Any, start: Any, offset: Any) -> Any:
        return types.void(values, types.intp, types.intp), written_in

    return intrinsic(fetch)
