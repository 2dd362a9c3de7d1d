"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("proto", "services", "worker", "benchmarks", "tests")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 80
CHECKS = {
    "ruff check .",
    "ruff format --check .",
    "buf lint",
    "pyright",
    "pytest -n 3 --dist worksteal -m not long",
    "pytest -n 2 --dist worksteal -m long",
}
# Stands in for each tool: writes down how it was called, and fails where it is told to.
TOOL = """#!/bin/sh
set -- "${0##*/}" "$@"
echo "$*" >> "$CALLS"
[ "$*" != "$FAILS" ]
"""
TOP_LEVEL = {"services", "proto", "worker", "docker", "k8s", "tests", "benchmarks", "docs"}


def sources() -> list[Path]:
    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")]
    # Sorted: pytest-xdist wants the same tests in the same order in each of its processes.
    return sorted(p for p in found if "_pb2" not in p.name and "__pycache__" not in p.parts)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_holds_one_idea_and_says_so(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= FILE_LINES_MAX, "two ideas in one room?"
    if tree.body:
        assert ast.get_docstring(tree), "the head must say what the room is for"
    for function in functions(tree):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= FUNCTION_LINES_MAX, f"{function.name} does not fit a screen"


def test_only_the_known_folders_stand_at_the_top() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    folders = {line.split("/")[0] for line in listed if "/" in line and not line.startswith(".")}
    assert folders == TOP_LEVEL


def test_every_folder_of_tests_says_what_it_proves() -> None:
    folders = {path.parent for path in sources() if ROOT / "tests" in path.parent.parents}
    assert [str(folder) for folder in folders if not (folder / "README.md").exists()] == []


def test_nothing_prints_outside_the_command_line() -> None:
    screens = {"cli", "benchmarks", "tests", "examples"}
    for path in sources():
        if screens & set(path.relative_to(ROOT).parts):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}: log it or return it"


def test_no_pickle_in_what_we_ship() -> None:
    for path in sources():
        if path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert all(alias.name != "pickle" for alias in node.names), path
            elif isinstance(node, ast.ImportFrom):
                assert node.module != "pickle", path


def test_no_core_opens_a_file() -> None:
    """open() needs no import, so the import contracts do not see it."""
    cores = [path for path in sources() if "core" in path.relative_to(ROOT).parts[:-1]]
    assert {path.relative_to(ROOT).parts[1] for path in cores} == {
        "syncline", "syncline_control", "syncline_sync",
    }  # fmt: skip
    for path in cores:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert called != "open", f"{path}:{node.lineno}: leave files to the adapters"


def test_the_programs_meet_only_in_the_contract_and_the_cores_do_no_io() -> None:
    """The contracts of [tool.importlinter] in pyproject.toml."""
    lint = Path(sys.executable).with_name("lint-imports")
    command = [str(lint) if lint.exists() else shutil.which("lint-imports") or "lint-imports"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fails", ["nothing", *sorted(CHECKS)])
def test_what_runs_on_every_change_is_every_check_and_each_of_them_counts(
    tmp_path: Path, fails: str
) -> None:
    """.ci/run and the Makefile as they are; the tools themselves would run these tests again."""
    (tmp_path / "proto").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in {check.split()[0] for check in CHECKS}:
        (tools / name).write_text(TOOL)
        (tools / name).chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    calls = tmp_path / "calls"
    # Nothing else: what a make around these tests was told would reach the make in here.
    env = {"PATH": os.environ["PATH"], "CALLS": str(calls), "FAILS": fails}
    done = subprocess.run([".ci/run"], cwd=tmp_path, env=env, capture_output=True, text=True)
    if fails == "nothing":
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(calls.read_text().splitlines()) == CHECKS
    else:
        assert done.returncode != 0, f"{fails} failed, and nobody was told"
        assert fails in calls.read_text().splitlines()


def test_pyright_is_strict_for_the_contract_and_the_services() -> None:
    pyright = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    assert set(pyright["strict"]) == {"proto", "services"}
    assert pyright["typeCheckingMode"] == "standard"
    assert set(pyright["include"]) == set(FOLDERS)
    assert pyright["exclude"] == ["**/*_pb2*"], "only what is generated goes unchecked"
