"""A launch's ports are its own, also while a service is being started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline.launch.ports import free_ports

HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not HANDED_OUT.exists(), reason="reads /proc")
def test_free_ports_are_none_that_the_system_hands_out() -> None:
    first, last = map(int, HANDED_OUT.read_text().split())
    ports = free_ports(100)
    assert len(set(ports)) == 100
    assert not set(ports) & set(range(max(first, 32_768), last + 1))
