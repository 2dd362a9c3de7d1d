"""The stubs are what the schema says, and the schema keeps buf's rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "proto"
SCHEMA = PROTO / "syncline_proto" / "schema" / "syncline" / "sync" / "v1"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stubs as `make generate` would write them now."""
    out = tmp_path_factory.mktemp("stubs")
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"-Isyncline_proto/v1={SCHEMA}"),
        *(f"--python_out={out}", f"--grpc_python_out={out}"),
        *(
            f"--mypy_out=quiet:{out}",
            f"--mypy_grpc_out=quiet:{out}",
            "syncline_proto/v1/sync.proto",
        ),
    ]
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / "syncline_proto" / "v1"


@pytest.mark.parametrize(
    "name", ["sync_pb2.py", "sync_pb2.pyi", "sync_pb2_grpc.py", "sync_pb2_grpc.pyi"]
)
def test_the_stubs_are_what_the_schema_says(fresh: Path, name: str) -> None:
    checked_in = PROTO / "syncline_proto" / "v1" / name
    assert (fresh / name).read_text() == checked_in.read_text(), "run `make generate`"


def test_the_schema_keeps_bufs_rules() -> None:
    done = subprocess.run([BIN / "buf", "lint"], cwd=PROTO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
