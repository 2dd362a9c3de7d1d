"""The page asks for what there is: its paths and the keys it reads stand in the OpenAPI.

Reads the page's own text, so it needs no browser; test_control_page.py runs it in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from syncline_control.app import create_app
from syncline_control.state import State

SCRIPTS = ("api.js", "page.js", "chart.js", "rounds.js")
SCHEMAS = {
    "run": ["RunView"],
    "s": ["RunSettings"],
    "p": ["Progress"],
    "event": ["Event"],
    "report": ["RoundReport"],
    "curve": ["MetricSeries"],
    "problem": ["Problem"],
    "read": ["DataView"],
    # Lists are walked by ``one``, whatever they are of.
    "one": [
        *("RunView", "ReplicaView", "SyncEndpoint"),
        *("RoundReport", "ContributionView", "MetricSeries", "EpochView"),
    ],
}
"""What the page's variables hold."""

ASKED = re.compile(r'\b(?:get|call)\((?:"[A-Z]+", )?(["`])(/[a-z].*?)\1')
BELOW_RUN = re.compile(r'\bpath\([^,()]+(?:\([^()]*\))?, (["`])(/.*?)\1')
INSERTED = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
READ = re.compile(rf"(?<![.\w$])({'|'.join(SCHEMAS)})((?:\??\.[A-Za-z_]\w*)+)")


def script(name: str) -> str:
    return files("syncline_control").joinpath("page", name).read_text()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def openapi(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> dict[str, Any]:
    database: Path = tmp_path_factory.mktemp("control") / "control.db"
    async with await State.open(str(database)) as state:
        return create_app(state).openapi()


def asked_paths() -> set[str]:
    """Every path that the scripts name, with {} for what they insert."""
    found: set[str] = set()
    for name in SCRIPTS:
        text = script(name)
        found |= {path for _, path in ASKED.findall(text)}
        found |= {f"/runs/{{}}{path}" for _, path in BELOW_RUN.findall(text)}
    return {INSERTED.sub("{}", path) for path in found}


@pytest.mark.anyio
async def test_every_path_that_the_page_asks_for_is_there(openapi: dict[str, Any]) -> None:
    there = {re.sub(r"\{\w+\}", "{}", path): ways for path, ways in openapi["paths"].items()}
    asked = asked_paths()
    assert len(asked) >= 8, "the page asks in another way now; mend ASKED"
    for one in asked:
        path, _, query = one.partition("?")
        if path == "/runs/{}/{}":  # the buttons of the run's head
            buttons = re.findall(r"^  (\w+): \[", script("page.js").partition("const TEXT = {")[2],
                                 re.MULTILINE)  # fmt: skip
            assert {"pause", "resume", "stop"} <= set(buttons)
            for button in buttons:
                assert "post" in there[f"/v1/runs/{{}}/{button}"]
            continue
        ways = there.get(f"/v1{path}")
        assert ways is not None, f"the page asks for {one}, and there is no such path"
        known = {one["name"] for way in ways.values() for one in way.get("parameters", ())}
        assert {pair.partition("=")[0] for pair in query.split("&") if pair} <= known, one


@pytest.mark.anyio
async def test_every_key_that_the_page_reads_is_in_a_schema(openapi: dict[str, Any]) -> None:
    schemas = openapi["components"]["schemas"]
    reads = {found for name in SCRIPTS for found in READ.findall(script(name))}
    assert len(reads) >= 40, "the page reads in another way now; mend READ"
    for variable, chain in sorted(reads):
        keys = re.findall(r"\w+", chain)
        known = [schemas[name] for name in SCHEMAS[variable]]
        assert any(leads_somewhere(schema, keys, schemas) for schema in known), variable + chain


def leads_somewhere(schema: dict[str, Any], keys: list[str], schemas: dict[str, Any]) -> bool:
    """Whether the keys exist, down to what is no object: methods of that are JavaScript's."""
    for key in keys:
        objects = [one for one in parts(schema, schemas) if "properties" in one]
        if not objects:
            return True
        schema = next((one["properties"][key] for one in objects if key in one["properties"]), {})
        if not schema:
            return False
    return True


def parts(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a schema may be, references followed."""
    if "$ref" in schema:
        yield from parts(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for kind in ("anyOf", "allOf"):
        for one in schema.get(kind, ()):
            yield from parts(one, schemas)
    if not {"$ref", "anyOf", "allOf"} & schema.keys():
        yield schema
