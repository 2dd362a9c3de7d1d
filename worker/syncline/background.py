"""Work in a thread that does not keep the process alive.

A pool of ``concurrent.futures`` would: the interpreter waits for its threads when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Work(Generic[Value]):
    """What is under way, and who does it."""

    future: Future[Value]
    thread: threading.Thread


def in_background(act: Callable[[], Value], name: str) -> Work[Value]:
    """Begin ``act``; what it returns or raises is in the future."""
    future: Future[Value] = Future()
    thread = threading.Thread(target=_run, args=(act, future), name=name, daemon=True)
    thread.start()
    return Work(future, thread)


def _run(act: Callable[[], Value], future: Future[Value]) -> None:
    try:
        future.set_result(act())
    except BaseException as error:
        future.set_exception(error)
    finally:
        del future  # it has the error, and that has this frame
