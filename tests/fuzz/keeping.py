"""Checkpoints asked for and offered in any form: a real service, in this process, stays as it was.

A call has the fields of its message spoilt, or meets a checkpoint that somebody has made: sealed
and of the right checksums, so that nothing but what it says is wrong. It is answered, or refused
under a code of ours; whatever it is, the run at work has the same values, rounds and files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import traceback
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from hypothesis import strategies as st

from fuzz.drawn import NAMES, NUMBERS
from fuzz.examples import at_work
from syncline_proto.codec import crc32c
from syncline_proto.layout import layout_from_json
from syncline_proto.manifest import SEAL, file_name, unsealed
from syncline_proto.v1 import checkpoints_pb2 as pb
from syncline_testing.keeping import LAYOUT, MEMBERS, SETTINGS, begin, round_of, save, started
from syncline_testing.service import code_of, service

REFUSALS = {
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "RUN_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "REVISION_GONE": grpc.StatusCode.FAILED_PRECONDITION,
    "RUN_CONFLICT": grpc.StatusCode.FAILED_PRECONDITION,
    "CHECKPOINT": grpc.StatusCode.FAILED_PRECONDITION,
    "CONFIG": grpc.StatusCode.FAILED_PRECONDITION,
    "CHECKPOINT_DAMAGED": grpc.StatusCode.DATA_LOSS,
    "STORE_DAMAGED": grpc.StatusCode.DATA_LOSS,
}
PATIENCE_S = 20.0

Edit = tuple[tuple[int, ...], Any]
"""A way down into JSON, by the number of each child, and what is there from then on."""

LONG = "long"
JSON = st.one_of(
    st.sampled_from([None, True, "", "a", "..", "0" * 32, [], {}, [[]], {"a": [1]}, -1, 0.5]),
    st.sampled_from([float("nan"), float("inf"), "\x00", "é", "-1", "1" * 5000, [0] * 3000]),
    NUMBERS,
    st.integers(-2, 2).map(lambda by: {LONG: by}),
)
"""Instead of a number, the last is another number close by."""

EDITS = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=6).map(tuple), JSON), max_size=3
)
URLS = st.one_of(
    st.sampled_from(["{kept}/whole", "{kept}/made", "{kept}/new"]),
    st.sampled_from(["", "/", "//", "s3://", "gs:///", "az://c/n", "s3://b", "http://a/b", "a::b"]),
    st.sampled_from(
        ["memory://a/b", "file://{kept}/whole", "{kept}", "{kept}/whole/", "{kept}/.."]
    ),
    st.sampled_from(["{kept}/file/a", "{kept}/../a", "{store}/runs/a", "{store}", "{kept}/\x00"]),
    st.sampled_from(["{kept}/" + "n" * 300, "{kept}/" + "n/" * 2000 + "a", "{kept}/N", "~/a"]),
    NAMES.filter(lambda name: not name.startswith("/")),
)
RUNS = st.one_of(st.sampled_from(["run", "other", "whole"]), NAMES)


FIELDS: dict[str, dict[str, Any]] = {
    "SaveFragments": {
        "run": RUNS,
        "url": URLS,
        "revision": NUMBERS,
        "fragments": st.one_of(st.just([0, 1]), st.lists(NUMBERS.map(lambda n: n % 2**32))),
        "newest": st.booleans(),
    },
    "SealCheckpoint": {"url": URLS},
    "ReadCheckpoint": {"url": URLS},
    "RestoreFragments": {"run": RUNS, "url": URLS},
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call, and the checkpoint ``made`` that it may meet: the whole one, with these edits."""

    method: str
    fields: dict[str, Any]
    manifest: tuple[Edit, ...]
    """Of its manifest, or of that which is sent."""
    header: tuple[Edit, ...]
    """Of what stands before the first fragment's tensors."""
    memory: tuple[Edit, ...]
    """Of what is remembered beside them."""
    cut: int
    """Bytes that its file lacks at its end."""
    text: str | None
    """In the place of the manifest that is sent."""


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any of the four; of two one meets a checkpoint of which something is all that is wrong."""
    meets_made = draw(st.booleans())
    most = ["RestoreFragments"] * 4 if meets_made else []
    method = draw(st.sampled_from([*FIELDS, *most]))
    fields = {name: draw(one) for name, one in FIELDS[method].items()}
    if meets_made:
        fields |= {"url": "{kept}/made"} | ({"run": "other"} if "run" in fields else {})
    wrong = draw(st.sampled_from(["manifest", "header", "memory", "memory", "cut"]))
    edits = {
        part: tuple(draw(EDITS)) if part == wrong else ()
        for part in ("manifest", "header", "memory")
    }
    return Call(
        method,
        fields,
        **edits,
        cut=draw(st.sampled_from([1, 4, 10_000])) if wrong == "cut" else 0,
        text=draw(st.sampled_from([None] * 6 + ["", "[" * 200_000, "{}", "\x00", '{"id":' * 9])),
    )


def strange_files() -> list[Call]:
    """Restores of fragments whose header, or memory, is of quite another form, or says of a number
    what no run can have counted or averaged."""
    fields = {"run": "other", "url": "{kept}/made"}
    plain = Call("RestoreFragments", fields, manifest=(), header=(), memory=(), cut=0, text=None)
    others: list[Any] = [[], {}, 5, None, "a", True]
    gradient_step, tokens, trained = 3, 4, 13
    pooled, window = (5, 0), 9
    numbers: list[Edit] = [
        ((gradient_step,), 1 << 63),
        ((tokens,), 1 << 63),
        ((tokens,), -1),
        ((trained,), [0] * 3000),
        ((*pooled, 3), 1.0),  # of its averages: as if nothing had been fed
        ((*pooled, 1), float("nan")),
        ((window, 3), -0.5),  # the age of its pushes
    ]
    return [
        *(replace(plain, memory=(((), other),)) for other in others),
        *(replace(plain, memory=(number,)) for number in numbers),
        *(replace(plain, header=((way, other),)) for way in ((), (0,), (1,)) for other in others),
    ]


def edited(value: Any, edits: tuple[Edit, ...]) -> Any:
    """A JSON value with other values at some places."""
    whole = {"": json.loads(json.dumps(value))}
    for way, other in edits:
        at: Any = whole
        key: Any = ""
        for step in way:
            child = at[key]
            if not isinstance(child, dict | list) or not child:
                break
            at, key = child, step % len(child)
            key = [*child][key] if isinstance(child, dict) else key
        close = isinstance(other, dict) and LONG in other and type(at[key]) in (int, float)
        at[key] = at[key] + other[LONG] if close else deepcopy(other)
    return whole[""]


class Keeping:
    """A service with a run at revision 1, and a checkpoint of it; a new one after a restore."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = contextlib.AsyncExitStack()
        self.examples, self.answered, self.refused, self.begun = 0, 0, 0, 0

    async def start(self) -> None:
        stored, self._store = self._folder / "stored", self._folder / f"store{self.examples}"
        self._kept = self._folder / "kept"
        is_first = not stored.exists()
        if not is_first:
            shutil.copytree(stored, self._store)
        self._service = s = await self._lives.enter_async_context(service(self._store, SETTINGS))
        if is_first:
            await started(s)
            await round_of(s, 0)
            await save(s, LAYOUT, str(self._kept / "whole"), 1)
            (self._kept / "file").write_text("in the way")
            shutil.copytree(self._store, stored)
        await s.members(MEMBERS)
        self._before = await self._stands()

    async def stop(self) -> None:
        await self._lives.aclose()
        shutil.rmtree(self._store)

    async def meets(self, call: Call) -> None:
        """Make the call, and check all that must be true after it."""
        self.examples += 1
        manifest = self._makes(call)
        answers = await self._told(call, manifest)
        assert not self._service.faults, self._why()
        assert await self._stands() == self._before
        if answers is None or call.method != "RestoreFragments":
            shutil.rmtree(self._store / "restoring", ignore_errors=True)
            return
        try:
            await self._begins(call)
        finally:
            await self.stop()
            await self.start()

    def _makes(self, call: Call) -> str:
        """Make the checkpoint that was drawn; its manifest."""
        whole, made = self._kept / "whole", self._kept / "made"
        for folder in (made, self._kept / "new"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, made)
        manifest = json.loads(SEAL.open((made / "checkpoint.json").read_bytes()))
        if call.header or call.memory or call.cut:
            entry = manifest["entries"][0]
            data = spoilt((whole / entry["file"]).read_bytes(), call)
            crc = crc32c(data)
            entry |= {"file": file_name(0, crc), "crc32c": crc, "bytes": len(data)}
            (made / entry["file"]).write_bytes(data)
        manifest = edited(manifest, call.manifest)
        if call.manifest:
            with contextlib.suppress(Exception):  # else nothing but the fingerprint is wrong
                layout = layout_from_json(json.dumps(manifest["layout"]))
                manifest["fingerprint"] = layout.fingerprint()
        text = json.dumps(manifest)
        (made / "checkpoint.json").write_bytes(SEAL.close(text))
        if call.method == "SealCheckpoint":
            (made / "checkpoint.json").unlink()
        return text if call.text is None else call.text

    async def _told(self, call: Call, manifest: str) -> list[Any] | None:
        """The answers; None of a call that was refused."""
        fields = dict(call.fields)
        fields["url"] = self._url(fields)
        if call.method == "SealCheckpoint":
            fields["manifest"] = manifest
        request = getattr(pb, f"{call.method}Request")(**fields)
        try:
            asked = getattr(self._service.checkpoints, call.method)(request, timeout=PATIENCE_S)
            found = [one async for one in asked] if hasattr(asked, "__aiter__") else [await asked]
        except grpc.aio.AioRpcError as error:
            self.refused += 1
            assert REFUSALS.get(code_of(error)) is error.code(), f"{error}\n{self._why()}"
            return None
        self.answered += 1
        return found

    def _url(self, fields: dict[str, Any]) -> str:
        url = fields["url"].replace("{kept}", str(self._kept))
        return url.replace("{store}", str(self._store))

    async def _begins(self, call: Call) -> None:
        """What was restored is served, or refused; the other run goes on."""
        s = self._service
        url = self._url(call.fields)
        manifest = unsealed((Path(url) / "checkpoint.json").read_bytes(), url)
        s.run, run = call.fields["run"], s.run
        try:
            await begin(s, url, manifest, MEMBERS)
            self.begun += 1
            with contextlib.suppress(grpc.aio.AioRpcError):
                status = await s.status()
                assert len(status.fragments) == len(manifest.entries)
        finally:
            s.run, s.origin = run, None
        assert not s.faults, self._why()

    async def _stands(self) -> Any:
        """The run's rounds, values and files; of the store nothing else but what is aside."""
        s = self._service
        values = [await s.pull(fragment=i, newest=True) for i in range(len(LAYOUT.fragments))]
        status = (await s.status()).SerializeToString(deterministic=True)
        assert not [*self._store.glob("pinned/*")]
        files = {
            str(path.relative_to(self._store)): path.read_bytes()
            for path in self._store.rglob("*")
            if path.is_file() and "restoring" not in path.parts
        }
        return status, [np.asarray(one).tobytes() for _, one in values], files

    def _why(self) -> str:
        """What the service's log would say of its faults."""
        return "".join("".join(traceback.format_exception(fault)) for fault in self._service.faults)


def spoilt(data: bytes, call: Call) -> bytes:
    """A fragment's file with what was drawn of its header and memory, and an end cut off."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    if call.memory:
        memory = json.loads(header["__metadata__"]["saved"])
        header["__metadata__"]["saved"] = json.dumps(edited(memory, call.memory))
    text = json.dumps(edited(header, call.header)).encode()
    whole = len(text).to_bytes(8, "little") + text + data[start:]
    return whole[: max(len(whole) - call.cut, 0)]


@contextlib.contextmanager
def keeping(folder: Path) -> Iterator[tuple[asyncio.Runner, Keeping]]:
    """A service for many examples, and the loop that it lives in."""
    with at_work(Keeping(folder)) as both:
        yield both
