"""A model or data of the user's own: a callable that a job names as ``module:factory``.

Only who trains imports it, and a launcher, to see that it is there: never who reads the record of
a run, which may come from anybody.
"""

from __future__ import annotations

import importlib
import inspect
import os
import reprlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from syncline.faults import trace_if_asked
from syncline_proto.errors import ConfigError

OF_MODEL, OF_DATA = "model.factory", "data.factory"
"""The settings that name one."""

Value = TypeVar("Value")


def found(named: str, key: str) -> Callable[..., Any]:
    """Import the factory that the setting ``key`` names; the working directory is importable.

    Raises:
        ConfigError: it cannot be imported, or is nothing to call.
    """
    module, _, name = named.partition(":")
    # As for ``python -m``; and a factory may import more of its package later.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        holder = importlib.import_module(module)
    except Exception as error:
        trace_if_asked()
        raise ConfigError(
            f"{key}: {module} cannot be imported ({said(error)}); start where its folder is, or "
            "have it on PYTHONPATH."
        ) from error
    factory = getattr(holder, name, None)
    if not callable(factory):
        has = "nothing to call" if hasattr(holder, name) else "not there"
        raise ConfigError(f"{key}: {name} of {module} is {has}; name a function of it.")
    return factory


def check_call(
    factory: Callable[..., Any], named: str, key: str, *args: Any, **kwargs: Any
) -> None:
    """Refuse what a factory cannot be called with; what it does with that only a call would tell.

    Raises:
        ConfigError: it takes other arguments.
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some of what is written in C does not tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f"{_call(named, key, *args, **kwargs)} cannot be called ({error}); correct "
            f"{key.partition('.')[0]}.arguments, or the function."
        ) from None


def called(factory: Callable[..., Any], named: str, key: str, *args: Any, **kwargs: Any) -> Any:
    """Call a factory; what it raises is told in one sentence, with what it was given.

    Raises:
        ConfigError: it raised.
    """
    return asked(_call(named, key, *args, **kwargs), lambda: factory(*args, **kwargs))


def asked(who: str, act: Callable[[], Value]) -> Value:
    """Ask something of the user's own; what it raises is told in one sentence.

    Raises:
        ConfigError: it raised.
    """
    try:
        return act()
    except Exception as error:
        trace_if_asked()
        raise ConfigError(f"{who} raised {said(error)}; SYNCLINE_DEBUG=1 shows where.") from error


def _call(named: str, key: str, *args: Any, **kwargs: Any) -> str:
    """The call, as it would be typed."""
    given = [reprlib.repr(value) for value in args]
    given += [f"{name}={reprlib.repr(value)}" for name, value in kwargs.items()]
    return f"{key}: {named}({', '.join(given)})"


def said(error: Exception) -> str:
    """Its kind and its first line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".: ")
