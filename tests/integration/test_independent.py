"""A client that shares no code with us, written from docs/protocol.md alone, is a whole replica.

Each journey is a program of its own, against a real control plane and sync service.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.foreign import FOLDER, arrives, generate, start

OURS = ("syncline", "syncline_proto", "syncline_sync", "syncline_control", "syncline_testing")


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("stubs"))


def test_the_client_imports_nothing_of_ours() -> None:
    sources = sorted(FOLDER.glob("*.py"))
    assert sources
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module or ""]
            assert not [n for n in names if n.split(".")[0] in OURS], f"{path}: {names}"


@pytest.mark.parametrize(
    "journey",
    [
        "averages-in-bf16",
        "penalties-in-fp32",
        "three-ranks",
        "two-synchronous-steps",
        "late-and-fenced",
        "refusals",
        "drained-and-finished",
    ],
)
def test_what_the_page_says_is_enough(cluster: Cluster, stubs: Path, journey: str) -> None:
    arrives(start(stubs, cluster, journey))


@pytest.mark.parametrize("codec", ["int8", "int4", "topk"])
def test_what_a_codec_loses_comes_later_and_counts_once(
    cluster: Cluster, stubs: Path, codec: str
) -> None:
    arrives(start(stubs, cluster, "nothing-is-lost", codec))
