"""A model or data of the user's own: a callable that a job names as ``module:factory``.

Only who trains imports it, and a launcher, to see that it is there: never who reads the record of
a run, which may come from anybody.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from syncline.faults import trace_if_asked
from syncline_proto.errors import ConfigError

OF_MODEL, OF_DATA = "model.factory", "data.factory"
"""The settings that name one."""


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
            f"{key}: {module} cannot be imported ({_said(error)}); start where its folder is, or "
            "have it on PYTHONPATH."
        ) from error
    factory = getattr(holder, name, None)
    if not callable(factory):
        has = "nothing to call" if hasattr(holder, name) else "not there"
        raise ConfigError(f"{key}: {name} of {module} is {has}; name a function of it.")
    return factory


def called(factory: Callable[..., Any], named: str, key: str, *args: Any, **kwargs: Any) -> Any:
    """Call a factory; what it raises is told in one sentence.

    Raises:
        ConfigError: it raised.
    """
    try:
        return factory(*args, **kwargs)
    except Exception as error:
        trace_if_asked()
        raise ConfigError(
            f"{key}: {named} raised {_said(error)}; SYNCLINE_DEBUG=1 shows where."
        ) from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".: ")
