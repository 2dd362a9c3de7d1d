"""The service gives back by itself what a flood of calls has left of the allocator's memory."""

from __future__ import annotations

import asyncio
import platform
import re
from pathlib import Path

import pytest

from syncline_proto.settings import RunSettings
from syncline_sync import residence
from syncline_testing.service import service

PATIENCE_S = 60.0


def resident() -> int:
    """MiB of this process."""
    told = re.search("VmRSS:.*?([0-9]+)", Path("/proc/self/status").read_text())
    assert told
    return int(told[1]) >> 10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_what_a_flood_leaves_goes_back_while_the_service_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residence, "SWEEP_S", 0.01)

    async def scenario() -> None:
        async with service(tmp_path, RunSettings()) as s:
            sweeping = asyncio.create_task(s.residence.sweep())
            flood = [b"x" * (1 << 16) for _ in range(8192)]
            few = flood[::64]  # in use, so that the allocator keeps what is between
            most = resident()
            del flood
            async with asyncio.timeout(PATIENCE_S):
                while resident() > most - 256:
                    await asyncio.sleep(0.01)
            assert len(few) == 128
            sweeping.cancel()

    asyncio.run(scenario())
