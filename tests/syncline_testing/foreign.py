"""The client of tests/independent as programs of their own, with stubs generated for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from syncline_testing.cluster import Cluster

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "independent"
SCHEMA = ROOT / "proto" / "syncline_proto" / "schema" / "syncline" / "sync" / "v1"
JOURNEY_S = 90.0


def generate(folder: Path) -> Path:
    """``sync_pb2.py`` and ``sync_pb2_grpc.py`` from the schema, in ``folder``."""
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SCHEMA}"]
    outputs = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([*protoc, *outputs, "sync.proto"], check=True, timeout=60)
    return folder


def start(stubs: Path, cluster: Cluster, journey: str, *arguments: str) -> subprocess.Popen[str]:
    """The independent client, on a journey."""
    path = os.pathsep.join([str(stubs), str(FOLDER.parent)])
    return subprocess.Popen(
        [sys.executable, "-m", "independent", cluster.control_url, journey, *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def arrives(program: subprocess.Popen[str]) -> None:
    """It ends well, or the test fails with what it said; none is left."""
    try:
        said, _ = program.communicate(timeout=JOURNEY_S)
    finally:
        program.kill()
    assert program.returncode == 0, said
