"""A launch's ports are its own, also while a service is being started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline.launch import ports
from syncline.launch.ports import HANDED_OUT, OURS, free_ports


@pytest.mark.skipif(not HANDED_OUT.exists(), reason="reads /proc")
def test_free_ports_are_none_that_the_system_hands_out() -> None:
    first, last = map(int, HANDED_OUT.read_text().split())
    others = [port for port in OURS if not first <= port <= last]
    if len(others) < 1000:
        pytest.skip(f"this system hands out {first} to {last}")
    found = free_ports(100)
    assert len(set(found)) == 100
    assert not set(found) & set(range(first, last + 1))


@pytest.mark.parametrize(
    ("handed_out", "expected"),
    [
        ("1024\t31999\n", range(32_000, 32_768)),
        ("31000\t65535\n", range(20_000, 31_000)),
        ("1024\t65535\n", OURS),  # there are no others
        ("", OURS),
        (None, OURS),
    ],
)
def test_the_system_says_which_ports_it_hands_out(
    handed_out: str | None, expected: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "ip_local_port_range"
    if handed_out is not None:
        told.write_text(handed_out)
    monkeypatch.setattr(ports, "HANDED_OUT", told)
    found = free_ports(20)
    assert len(set(found)) == 20 and set(found) <= set(expected)
