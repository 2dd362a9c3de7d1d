"""How faults and errors end a program: in one sentence, with a traceback for who asks for it.

A fault is for the outermost ``except Exception`` of a process. An error has a sentence of its own,
and leaves our modules by the doors of ``Replica`` and its hooks. Where a setting is to blame, who
wrote a script is told of arguments, and who typed a command of flags.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from syncline_proto.errors import ConfigError, Setting, SynclineError

INTERRUPTED = "It was interrupted."
"""What the run's log says of Ctrl+C."""

IN_SCRIPTS: Mapping[Setting, str] = {
    "control": "control=, SYNCLINE_CONTROL",
    "token": "SYNCLINE_TOKEN",
}
IN_SHELLS: Mapping[Setting, str] = {
    "control": "--control, SYNCLINE_CONTROL",
    "token": "--token, SYNCLINE_TOKEN",
}
"""How a setting is set there."""

OF_THE_WORKER = frozenset(
    {"prometheus_client", "pyarrow", "rich", "safetensors", "tensorboard", "tokenizers", "torch"}
    | {"transformers"}
)
"""What the extra ``worker`` brings; where only services are installed it is not there."""

Given = ParamSpec("Given")
Value = TypeVar("Value")


def error_of(fault: Exception) -> SynclineError:
    """The fault as one sentence for the person at the screen: ours, or an extra that is missing."""
    if isinstance(fault, ModuleNotFoundError) and fault.name is not None:
        package = fault.name.partition(".")[0]
        if package in OF_THE_WORKER:
            return ConfigError(
                f"This needs {package}, which is not installed here: "
                "pip install 'syncline[worker]'."
            )
    said = f"{type(fault).__name__}: {fault}".partition("\n")[0]
    return SynclineError(f"A fault of ours ({said}); SYNCLINE_DEBUG=1 shows where, please report.")


def told(error: SynclineError, ways: Mapping[Setting, str]) -> str:
    """The error's sentence, with how to set what is to blame."""
    return error.told(_way(error, ways))


def why_of(error: BaseException) -> str:
    """The error in the run's log; the text of one that is not ours stays where it was raised."""
    if isinstance(error, SynclineError):
        return error.message
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return f"It ended with {type(error).__name__}."


def trace_if_asked() -> None:
    """Write the traceback of the exception at hand where SYNCLINE_DEBUG=1 asks for it."""
    if _is_asked():
        traceback.print_exc()


def plainly(act: Callable[Given, Value]) -> Callable[Given, Value]:
    """Let an error of ours leave ``act`` without its way through our modules.

    What Python prints is then short: the user's own line, and the sentence last. The way and the
    causes are kept where SYNCLINE_DEBUG=1 asks for them.
    """

    @functools.wraps(act)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Value:
        try:
            return act(*args, **kwargs)
        except SynclineError as error:
            error.way = _way(error, IN_SCRIPTS)
            if _is_asked():
                raise
            raise error.with_traceback(None) from None

    return call


def _way(error: SynclineError, ways: Mapping[Setting, str]) -> str:
    return "" if error.setting is None else ways[error.setting]


def _is_asked() -> bool:
    return os.environ.get("SYNCLINE_DEBUG") == "1"
