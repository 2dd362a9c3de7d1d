"""The sync service as a process ends, whatever a checkpoint's store does, and says what it left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from syncline_proto.v1 import checkpoints_pb2 as pb
from syncline_proto.v1 import checkpoints_pb2_grpc
from syncline_testing.cluster import free_ports
from syncline_testing.keeping import LAYOUT, SETTINGS, save, started
from syncline_testing.processes import environment
from syncline_testing.service import service
from syncline_testing.waiting import wait_until

NOBODY = "http://127.0.0.1:9"


async def kept(store: Path, url: str) -> str:
    """Leave a checkpoint; the file of its first fragment."""
    async with service(store, SETTINGS) as s:
        await started(s)
        return (await save(s, LAYOUT, url, 0)).entries[0].file


@pytest.mark.long
def test_a_store_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Neither a fragment on its way nor a manifest that is read, with threads that never return."""
    place = tmp_path / "kept"
    file = asyncio.run(kept(tmp_path / "store", str(place / "one")))
    (place / "two").mkdir()
    (place / "one" / file).unlink()
    for hangs in (place / "one" / file, place / "two" / "checkpoint.json"):
        os.mkfifo(hangs)  # to open it for reading waits for who writes
    port, health, metrics = free_ports(3)
    ports = [f"--port={port}", f"--health-port={health}", f"--metrics-port={metrics}"]
    argv = [sys.executable, "-m", "syncline_sync", "--control", NOBODY, *ports]
    data = tmp_path / "data"
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*argv, "--data", str(data)], env=environment(), stdout=log, stderr=log
        ) as process,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        try:
            grpc.channel_ready_future(channel).result(timeout=60)
            stub: Any = checkpoints_pb2_grpc.CheckpointServiceStub(channel)
            restoring = stub.RestoreFragments(
                pb.RestoreFragmentsRequest(run="next", url=str(place / "one"))
            )
            reading = stub.ReadCheckpoint.future(pb.ReadCheckpointRequest(url=str(place / "two")))
            wait_until(lambda: any(data.rglob("*.fetched")), 30, "a fragment is being fetched")
            next(restoring)
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
            for answers in (lambda: list(restoring), reading.result):
                with pytest.raises(grpc.RpcError):
                    answers()
        finally:
            process.kill()
    said = (tmp_path / "log").read_text()
    assert f"run next is not restored from {place / 'one'}" in said
    assert f"the checkpoint {place / 'two'} is not read" in said
    assert "Traceback" not in said and "ended" in said.splitlines()[-1]
