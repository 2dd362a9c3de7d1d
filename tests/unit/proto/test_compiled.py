"""What is kept of a loop is used for as long as all that is written into it is the same.

And no loop keeps Python's lock while it is at work.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from syncline_proto import compiled

OUTER = """
import numpy as np
from inner_of_a_test import FACTOR, changed
from syncline_proto.compiled import compiled, written


@compiled("void", written("float32"))
def loop(out):
    for i in range(out.size):
        out[i] = changed(out[i]) * FACTOR
"""

INNER = """
import numpy as np
from syncline_proto.compiled import inner

FACTOR = np.float32({factor})
MORE = np.float32({more})


@inner
def deeper(value):
    return value + MORE


@inner
def changed(value):
    return {body}
"""

AHEAD = """
from syncline_proto.compiled import compiled, fetch_to_read, fetch_to_write, written


@compiled("void", written("float32"))
def loop(out):
    for i in range(out.size):
        fetch_to_read(out, i, 1 << 40)
        fetch_to_write(out, i, -(1 << 40))
        out[i] += 1
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the modules of a test and what comes of them lie."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit within a second is seen
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_all", [])
    (tmp_path / "outer_of_a_test.py").write_text(OUTER)
    yield tmp_path
    forget()


def forget() -> None:
    for name in ("inner_of_a_test", "outer_of_a_test"):
        sys.modules.pop(name, None)


def come_to(home: Path, body: str, *, factor: int = 1, more: int = 1) -> float:
    """What the loop makes of 10 in a process that begins with this inner module."""
    inner = INNER.format(body=body, factor=factor, more=more)
    (home / "inner_of_a_test.py").write_text(inner)
    forget()
    importlib.invalidate_caches()
    out = np.full(1, 10, np.float32)
    importlib.import_module("outer_of_a_test").loop(out)
    return float(out[0])


def kept(home: Path) -> set[str]:
    return {path.name for path in home.rglob("*outer_of_a_test*.nbi")}


def test_a_loop_is_compiled_anew_when_what_is_written_into_it_changes(home: Path) -> None:
    """In another file: be that a function, one that this calls, or a constant of either."""
    assert come_to(home, "value") == 10
    assert come_to(home, "value + value") == 20
    assert come_to(home, "deeper(value)") == 11
    assert come_to(home, "deeper(value)", more=2) == 12
    assert come_to(home, "deeper(value)", more=2, factor=3) == 36
    assert len(kept(home)) == 5


def test_a_loop_keeps_its_name_while_nothing_of_it_changes(home: Path) -> None:
    assert come_to(home, "deeper(value)") == 11
    before = kept(home)
    assert come_to(home, "deeper(value)  # in other words") == 11
    assert len(before) == 1 and kept(home) == before


def test_what_a_loop_fetches_ahead_may_be_nowhere(home: Path) -> None:
    (home / "outer_of_a_test.py").write_text(AHEAD)
    out = np.zeros(5, np.float32)
    importlib.import_module("outer_of_a_test").loop(out)
    assert out.tolist() == [1] * 5
    (made,) = (loop() for loop in compiled._all)
    (code,) = getattr(made, "inspect_llvm")().values()  # noqa: B009
    assert code.count("call void @llvm.prefetch") >= 2


LOOPS = (
    "syncline_proto.codec.loops",
    "syncline_proto.codec.difference_loops",
    "syncline_proto.codec.int8_loops",
    "syncline_sync.core.loops",
)


def test_no_loop_keeps_pythons_lock() -> None:
    for name in LOOPS:
        importlib.import_module(name)
    options = [getattr(loop(), "targetoptions") for loop in compiled._all]  # noqa: B009
    assert len(options) > 10 and all(one["nogil"] for one in options)
