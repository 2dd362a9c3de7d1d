"""How peers are driven, as far as that is seen without them: no test of every day starts one."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from network import Loopback
from peers import environments, gate
from peers.environments import MARK, PINS, CannotInstall, is_there, python_of
from systems import HERE, PEERS, Scene

THEIRS = {"gloo": set[str](), "torchft": {"torchft"}, "hivemind": {"hivemind"}, "flower": set()}
"""What a peer's driver may import besides torch, numpy and Python's own: what it has pinned."""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(
        network=Loopback(),
        participants=3,
        parameters=20_000,
        folder=tmp_path,
        gate=tmp_path / "gate",
        pythons={peer: tmp_path / peer / "bin" / "python" for peer in PINS},
    )


def driver(argv: Sequence[str]) -> ast.Module | None:
    """The module of ours that a command runs; None: it runs none."""
    if "-m" not in argv:
        return None
    found = find_spec(argv[argv.index("-m") + 1])
    assert found is not None and found.origin is not None
    return ast.parse(Path(found.origin).read_text())


def imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def asked_of_place(module: ast.Module) -> Iterator[str]:
    """The constant keys by which a driver asks where the others are."""
    for node in ast.walk(module):
        if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)):
            continue
        if ast.unparse(node.value) in ("where", "place()"):
            yield str(node.slice.value)


@pytest.mark.parametrize("peer", PEERS)
def test_each_participant_is_told_who_it_is_and_all_that_its_driver_asks(
    scene: Scene, peer: str
) -> None:
    commands = PEERS[peer](scene)
    told = [one for one in commands if one.env.get(gate.SYSTEM) == peer]
    assert sorted(one.env[gate.PARTICIPANT] for one in told) == ["0", "1", "2"]
    for one in (one for one in commands if gate.PLACE in one.env):
        assert one.env[gate.PARTICIPANTS] == "3" and one.env[gate.PARAMETERS] == "20000"
        assert one.env[gate.GATE] == str(scene.gate)
        module = driver(one.argv)
        if module is not None:
            place: dict[str, Any] = json.loads(one.env[gate.PLACE])
            assert set(asked_of_place(module)) <= set(place)


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_runs_in_its_environment_and_imports_what_is_there(scene: Scene, peer: str) -> None:
    home = scene.pythons[peer].parent if peer in PINS else Path(sys.executable).parent
    known = {"torch", "numpy", "peers", *sys.stdlib_module_names, *THEIRS[peer]}
    drivers = 0
    for command in PEERS[peer](scene):
        assert Path(command.argv[0]).parent == home
        assert command.env["PYTHONPATH"] == HERE, "nothing of ours but the drivers"
        if (module := driver(command.argv)) is not None:
            drivers += 1
            assert set(imported(module)) <= known
    assert drivers


def test_an_environment_that_is_as_it_is_pinned_is_used_and_another_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def create(home: Path, *, with_pip: bool) -> None:
        made.append(home.name)
        home.mkdir(parents=True)

    def pip(_: Path, pin: str, wishes: tuple[str, ...]) -> None:
        made.extend(wishes)
        if "flwr" in pin and len(made) > 9:
            raise CannotInstall("No room.")

    monkeypatch.setattr(environments.venv, "create", create)
    monkeypatch.setattr(environments, "_pip", pip)
    assert not is_there("flower", tmp_path)
    python = python_of("flower", tmp_path)
    assert python == tmp_path / "flower" / "bin" / "python" and is_there("flower", tmp_path)
    whole = ["flower", *(wish for group in PINS["flower"] for wish in group)]
    assert made == whole and python_of("flower", tmp_path) == python and made == whole
    (tmp_path / "flower" / MARK).write_text(json.dumps([["flwr==1.0"]]))
    assert python_of("flower", tmp_path) == python and made == 2 * whole
    made += ["full"] * 9
    (tmp_path / "flower" / MARK).unlink()
    with pytest.raises(CannotInstall, match="No room"):
        python_of("flower", tmp_path)
    assert not is_there("flower", tmp_path), "what is not whole is made again"


def test_why_pip_fails_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "python"
    pip.write_text(f"#!{sys.executable}\nimport os, sys\nsys.exit('ERROR: ' + str(sys.argv[1:4]))")
    pip.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.devnull)
    with pytest.raises(CannotInstall, match="could not install it==1: ERROR: .*'-m', 'pip', 'inst"):
        environments._pip(pip, "it==1", ("it==1",))
