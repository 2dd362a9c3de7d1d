"""Everything that an installation pulls in is pinned: by constraints.txt, or by who pulls it in.

And what is pinned is what these tests run with. PyTorch's CUDA build names each of its CUDA
wheels with an exact version, so they need no line.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def pinned() -> dict[str, Version]:
    """The one version of each distribution that has a line, by its canonical name."""
    lines = CONSTRAINTS.read_text().splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(str(one.specifier).startswith("==") for one in wanted)
    pins: dict[str, Version] = {
        canonicalize_name(one.name): Version(str(one.specifier).removeprefix("=="))
        for one in wanted
    }
    assert len(pins) == len(wanted), "one line each"
    return pins


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


def test_what_is_installed_is_what_is_pinned() -> None:
    """A build for other hardware (2.13.0+cpu) is the same version."""
    compared = 0
    others: dict[str, str] = {}
    for name, pin in pinned().items():
        try:
            found = Version(version(name))
        except PackageNotFoundError:  # for another platform
            continue
        compared += 1
        if Version(found.public) != pin:
            others[name] = f"{found}, pinned: {pin}"
    assert compared > 60
    assert not others, "install with -c constraints.txt, or pin what was tested"
