"""The stubs are what the schema says, and the schema keeps buf's rules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "proto"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stubs that `make generate` writes, in a copy of the schema without any."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "Makefile", copy)
    shutil.copytree(PROTO, copy / "proto", ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
    # -o: what is installed here serves; a make around these tests has no say.
    command = ["make", "-o", ".venv/.installed", f"BIN={BIN}", "generate"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "proto" / "syncline_proto" / "v1"


@pytest.mark.parametrize("schema", ["sync", "checkpoints"])
@pytest.mark.parametrize("kind", ["_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi"])
def test_the_stubs_are_what_the_schema_says(fresh: Path, schema: str, kind: str) -> None:
    name = f"{schema}{kind}"
    checked_in = PROTO / "syncline_proto" / "v1" / name
    assert (fresh / name).read_text() == checked_in.read_text(), "run `make generate`"


def test_the_schema_keeps_bufs_rules() -> None:
    done = subprocess.run([BIN / "buf", "lint"], cwd=PROTO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
