"""Everything that an installation pulls in is pinned: by constraints.txt, or by who pulls it in.

PyTorch's CUDA build names each of its CUDA wheels with an exact version, so they need no line.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def pinned() -> set[str]:
    lines = CONSTRAINTS.read_text().splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(str(one.specifier).startswith("==") for one in wanted)
    return {canonicalize_name(one.name) for one in wanted}


def needs(name: str, extras: set[str]) -> Iterator[Requirement]:
    """What a distribution asks for on this machine with these of its extras."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return
    for line in lines:
        one = Requirement(line)
        marker = one.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield one


def test_every_distribution_is_pinned() -> None:
    known = pinned()
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement("syncline[all,dev]")]
    loose: set[str] = set()
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        if (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        is_exact = str(one.specifier).startswith("==") and "*" not in str(one.specifier)
        if name not in known and name != "syncline" and not is_exact:
            loose.add(name)
        todo.extend(needs(name, set(one.extras)))
    assert len(seen) > 60
    assert not loose, "give each a line in constraints.txt"
