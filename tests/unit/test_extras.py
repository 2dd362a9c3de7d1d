"""Each program finds what it imports where only its own extra is installed.

The tests run with all extras, so they would not miss a requirement that one of them lost.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, tuple[str, ...]] = {
    "proto/syncline_proto": (),
    "services/syncline_sync": ("sync",),
    "services/syncline_control": ("control",),
    "worker/syncline": ("worker",),
}
OURS = {Path(folder).name for folder in EXTRAS}
# Imported, and left to the one whose interface they are, which alone knows which version fits.
TRANSITIVE = {
    "pydantic-core": "pydantic",  # the errors and schemas that pydantic hands out
    "starlette": "fastapi",  # the types and exceptions under fastapi's
    "huggingface-hub": "transformers",  # the errors that from_pretrained raises
}
# Imported where it is wanted, by code that names this extra to those who lack it.
OPTIONAL = {
    "datasets": "hub",
    "kubernetes": "kubernetes",
    "lightning": "lightning",
    "psycopg": "postgres",
    "urllib3": "kubernetes",  # the errors of its calls
}
# Imported by a module of another distribution that does not ask for it.
BEHIND = {"torch.utils.tensorboard": "tensorboard"}
HOMES = packages_distributions()


def names(requirements: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def declared(*extras: str) -> set[str]:
    """The distributions that the base and these extras ask for."""
    wanted = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    return names([*PROJECT["dependencies"], *wanted])


def imported(folder: str) -> set[str]:
    """Every module of others that some file of the folder imports, at its head or in a function."""
    modules: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    known = OURS | sys.stdlib_module_names
    return {module for module in modules if module.partition(".")[0] not in known}


@pytest.mark.parametrize("folder", EXTRAS)
def test_a_program_finds_all_that_it_imports(folder: str) -> None:
    there = declared(*EXTRAS[folder])
    there |= {name for name, source in TRANSITIVE.items() if source in there}
    modules = imported(folder)
    assert len(modules) > 5
    lost: set[str] = set()
    for module in modules:
        top = module.partition(".")[0]
        homes = names(HOMES.get(top, []))
        if top in OPTIONAL:
            continue
        if not homes & there or (module in BEHIND and BEHIND[module] not in there):
            lost.add(module)
    assert not lost, f"ask for them in {EXTRAS[folder] or 'dependencies'} of pyproject.toml"


@pytest.mark.parametrize("module", OPTIONAL)
def test_the_extra_that_an_optional_import_names_brings_it(module: str) -> None:
    assert names(HOMES[module]) & (declared(OPTIONAL[module]) - declared())


def test_who_brings_a_loop_of_his_own_loads_nothing_of_other_loops() -> None:
    others = {"accelerate", "lightning", "peft", "transformers"}
    told = f"import sys, syncline.replica, syncline.optim; print({others} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", TRANSITIVE)
def test_what_is_left_to_another_is_pulled_in_by_it(name: str) -> None:
    """Without an extra: those come only where they are asked for."""
    lines = [Requirement(line) for line in requires(TRANSITIVE[name]) or []]
    always = [one for one in lines if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert name in {canonicalize_name(one.name) for one in always}
