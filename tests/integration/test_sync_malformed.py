"""Whatever comes over the wire, the service serves on and no parameter changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syncline_proto.codec import crc32c
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.names import valid_name
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import RUN, Service, code_of, service

ROWS, COLUMNS = 60, 50
LAYOUT = Layout(
    (TensorSpec("w", (ROWS, COLUMNS), "float32"), TensorSpec("s", (), "float32")),
    (
        FragmentSpec("f0", (Box(0, (0, 0), (50, COLUMNS)), Box(1, (), ()))),
        FragmentSpec("f1", (Box(0, (50, 0), (10, COLUMNS)),)),
    ),
)
NUMEL = 50 * COLUMNS + 1
RUN_SETTINGS = RunSettings.model_validate(
    {"strategy": "local-sgd", "min_replicas": 2, "codec": {"up": "fp32", "down": "fp32"}}
)
START = np.random.default_rng(0).standard_normal(NUMEL).astype(np.float32)
BOXES = [box.to_proto() for box in LAYOUT.fragments[0].boxes]
Parts = list[pb.PushRequest]


def chunk(data: bytes, crc_off: int = 0) -> pb.PushRequest:
    return pb.PushRequest(chunk=pb.Chunk(data=data, crc32c=crc32c(data) ^ crc_off))


def good_header(seq: int, **given_fields: Any) -> pb.PushHeader:
    usual: dict[str, Any] = {
        "run": RUN, "epoch": 1, "replica": "a", "incarnation": 1, "fragment": 0, "seq": seq,
        "rank": 0, "ranks": 1, "kind": pb.PUSH_KIND_PSEUDO_GRADIENT, "base_revision": 0,
        "codec": pb.CODEC_FP32, "boxes": BOXES, "inner_steps": 1, "tokens": 1,
    }  # fmt: skip
    return pb.PushHeader(**usual | given_fields)


def good_chunks() -> Parts:
    """The payload in chunks of 1024 elements and a last one of 453."""
    raw = START.tobytes()
    return [chunk(raw[i : i + 4096]) for i in range(0, len(raw), 4096)]


def box(tensor: int, offsets: list[int], sizes: list[int]) -> pb.Box:
    return pb.Box(tensor=tensor, offsets=offsets, sizes=sizes)


HUGE = st.sampled_from([2**31, 2**32, 2**53, 2**63, 2**64 - 1])
BAD_NAMES = st.one_of(
    st.sampled_from(["", "..", "a/b", "a\\b", "a\n", "a\x00", "../../etc", "A", "%2e%2e", "ü"]),
    st.text(max_size=70).filter(lambda t: not t.isascii() or not t.islower()),
)
BAD_BOXES = st.one_of(
    st.lists(
        st.builds(
            box,
            st.sampled_from([0, 0, 1, 2, 2**32 - 1]),
            st.lists(st.one_of(st.integers(0, 60), HUGE), max_size=3),
            st.lists(st.one_of(st.integers(0, 60), HUGE), max_size=3),
        ),
        max_size=4,
    ),
    st.permutations(BOXES + BOXES[:1]),  # one of them twice
    st.just(BOXES[:1]),  # one is missing
    st.just([box(0, [0, 0], [50, 49]), BOXES[1]]),  # a column is missing
)
BAD_DATA = [
    [pb.DataRange(start=3, stop=3)],
    [pb.DataRange(start=0, stop=2**60)],
    [pb.DataRange(epoch=2**64 - 1, stop=1)],
    [pb.DataRange(start=0, stop=4), pb.DataRange(start=4, stop=5)],
    [pb.DataRange(epoch=1, stop=4), pb.DataRange(epoch=0, stop=4)],
    [pb.DataRange(start=2 * at, stop=2 * at + 1) for at in range(257)],
]

BAD_FIELDS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"run": BAD_NAMES}),
    st.fixed_dictionaries({"replica": BAD_NAMES.filter(lambda n: not valid_name(n))}),
    st.fixed_dictionaries({"run": st.just("unknown-run")}),
    st.fixed_dictionaries({"fragment": st.sampled_from([2, 2**32 - 1])}),
    st.fixed_dictionaries({"seq": st.one_of(st.just(0), HUGE.filter(lambda n: n > 2**40))}),
    st.fixed_dictionaries({"rank": st.sampled_from([1, 2**32 - 1])}),
    st.fixed_dictionaries({"ranks": st.sampled_from([0, 2**17, 2**32 - 1])}),
    st.fixed_dictionaries({"kind": st.sampled_from([0, 4, 99])}),
    st.fixed_dictionaries({"codec": st.sampled_from([0, 6, 99])}),
    st.fixed_dictionaries({"codec": st.integers(2, 5)}),  # the chunks are fp32
    st.fixed_dictionaries(
        {"base_revision": st.one_of(st.none(), HUGE.filter(lambda n: n > 2**40))}
    ),
    st.fixed_dictionaries({"inner_steps": st.one_of(st.just(0), HUGE.filter(lambda n: n > 2**40))}),
    st.fixed_dictionaries({"tokens": HUGE.filter(lambda n: n > 2**40)}),
    st.fixed_dictionaries({"first_step": st.just(5), "last_step": st.just(4)}),
    st.fixed_dictionaries({"kind": st.just(pb.PUSH_KIND_GRADIENT), "gradient_step": st.just(0)}),
    st.fixed_dictionaries({"boxes": BAD_BOXES}),
    st.fixed_dictionaries({"data": st.sampled_from(BAD_DATA)}),
)


@st.composite
def bad_pushes(draw: st.DrawFn) -> tuple[dict[str, Any], list[Any]]:
    """(header fields, what follows); "header" in what follows stands for the header once more."""
    fields = draw(st.one_of(BAD_FIELDS, st.just({})))
    rest: list[Any] = list(good_chunks())
    if fields:
        return fields, ["header", *rest]
    at = draw(st.integers(0, len(rest) - 1))
    data = rest[at].chunk.data
    how = draw(st.sampled_from(range(10)))
    if how == 0:
        rest[at] = chunk(data, crc_off=draw(st.integers(1, 2**32 - 1)))
    elif how == 1:
        rest[at] = chunk(data[: draw(st.integers(0, len(data) - 1))])
    elif how == 2:
        rest[at] = chunk(data + bytes(draw(st.integers(1, 9000))))
    elif how == 3:
        del rest[at]
    elif how == 4:
        rest.insert(at, rest[at])
    elif how == 5:
        rest = [chunk(START.tobytes() + bytes(2 << 20))]
    elif how == 6:
        return {}, [*rest[:at], "header", "header", *rest[at:]]
    elif how == 7:
        return {}, rest  # no header at all
    elif how == 8:
        return {}, []
    else:
        rest.insert(draw(st.integers(0, len(rest))), pb.PushRequest())
    return {}, ["header", *rest]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[asyncio.Runner, Service]]:
    """A service at revision 0, for many examples."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()

        async def start() -> Service:
            s = await stack.enter_async_context(service(folder, RUN_SETTINGS))
            await s.members({"a": 1, "b": 1})
            await s.open(LAYOUT, "a")
            await s.push(START, "a", kind=pb.PUSH_KIND_PARAMETERS, boxes=BOXES)
            return s

        try:
            yield runner, runner.run(start())
        finally:
            runner.run(stack.aclose())


async def unharmed(s: Service) -> None:
    """Nothing has changed, nothing is held, and the service serves on."""
    assert not s.faults
    state = (await s.status()).fragments[0]
    assert (state.revision, list(state.arrived)) == (0, [])
    _, values = await s.pull(newest=True)
    assert values.tobytes() == START.tobytes()
    assert s.shared.budget.used == 0


def test_a_malformed_push_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as (runner, s):

        @given(bad_pushes())
        @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        def refused(drawn: tuple[dict[str, Any], list[Any]]) -> None:
            fields, rest = drawn
            header = pb.PushRequest(header=good_header(**{"seq": 7, **fields}))
            parts = [header if part == "header" else part for part in rest]

            async def send() -> None:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await s.send(*parts)
                refusals = ("INVALID_REQUEST", "CHUNK_DAMAGED", "RUN_UNKNOWN")
                assert code_of(error.value) in refusals, error.value
                await unharmed(s)

            runner.run(send())

        refused()

        async def good_ones_still_pass() -> None:
            pushed = await s.push(START, "a", boxes=BOXES, base_revision=0, seq=8)
            assert pushed.verdict == pb.VERDICT_ACCEPTED

        runner.run(good_ones_still_pass())


def test_a_replica_that_is_none_is_fenced(tmp_path: Path) -> None:
    with served(tmp_path) as (runner, s):

        @given(HUGE)
        @settings(max_examples=30, deadline=None)
        def fenced(incarnation: int) -> None:
            async def send() -> None:
                for header in (
                    good_header(7, incarnation=incarnation),
                    good_header(7, replica="c"),
                ):
                    answer = await s.send(pb.PushRequest(header=header), *good_chunks())
                    assert answer.verdict == pb.VERDICT_FENCED
                await unharmed(s)

            runner.run(send())

        fenced()


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_no_header_can_be_written_that_is_not_utf_8(data: st.DataObject) -> None:
    """protobuf itself refuses it, on both ends."""
    raw = data.draw(st.binary(min_size=1, max_size=20))
    message = b"\x0a" + bytes([len(raw)]) + raw  # field 1 (run), as bytes
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        with pytest.raises(Exception, match="UTF-8|parsing"):
            pb.PushHeader.FromString(message)
    else:
        assert pb.PushHeader.FromString(message).run == text


def test_a_message_that_is_too_long_ends_its_own_call_only(tmp_path: Path) -> None:
    with served(tmp_path) as (runner, s):

        async def scenario() -> None:
            async with grpc.aio.insecure_channel(s.address) as channel:
                base = "/syncline.sync.v1.SyncService/"
                with pytest.raises(grpc.aio.AioRpcError) as big:
                    await channel.unary_unary(base + "GetRunStatus")(bytes(9 << 20), timeout=10)
                assert big.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await unharmed(s)

        runner.run(scenario())


@pytest.mark.parametrize(
    ("request_fields", "code"),
    [
        ({"run": "unknown", "newest": True}, "RUN_UNKNOWN"),
        ({"run": "../run", "newest": True}, "INVALID_REQUEST"),
        ({"fragment": 9, "newest": True}, "INVALID_REQUEST"),
        ({"epoch": 2, "newest": True}, "EPOCH_CHANGED"),
        ({}, "INVALID_REQUEST"),
        ({"newest": True, "boxes": [box(0, [0, 0], [51, 50])]}, "INVALID_REQUEST"),
        ({"newest": True, "boxes": [box(0, [0], [1])]}, "INVALID_REQUEST"),
        ({"newest": True, "boxes": [box(0, [2**63, 0], [1, 1])]}, "INVALID_REQUEST"),
        ({"newest": True, "boxes": [pb.Box(tensor=0, offsets=[0])]}, "INVALID_REQUEST"),
        ({"gradient_step": 1}, "REVISION_GONE"),
    ],
    ids=str,
)
def test_a_malformed_pull_is_refused(
    tmp_path: Path, request_fields: dict[str, Any], code: str
) -> None:
    with served(tmp_path) as (runner, s):

        async def scenario() -> None:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                request = pb.PullRequest(**{"run": RUN, "fragment": 0, **request_fields})
                async for _ in s.stub.Pull(request, timeout=10):
                    pass
            assert code_of(error.value) == code
            await unharmed(s)

        runner.run(scenario())


@pytest.mark.parametrize(
    ("request_fields", "code"),
    [
        ({"run": "a/b"}, "INVALID_REQUEST"),
        ({"replica": "A\n"}, "INVALID_REQUEST"),
        ({"layout": pb.Layout()}, "INVALID_REQUEST"),
        (
            {"layout": pb.Layout(tensors=[pb.Tensor(name="w", shape=[2**63] * 8)])},
            "INVALID_REQUEST",
        ),
        ({"layout": None}, "INVALID_REQUEST"),
        (
            {
                "layout": pb.Layout(
                    tensors=[pb.Tensor(name="n" * 4_000_000)], fragments=[pb.Fragment()]
                )
            },
            "INVALID_REQUEST",
        ),
        (
            {
                "layout": pb.Layout(
                    tensors=[pb.Tensor(name="w", dtype="ü" * 10**6)], fragments=[pb.Fragment()]
                )
            },
            "INVALID_REQUEST",
        ),
        ({"run": "unknown", "replica": ""}, "RUN_UNKNOWN"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_malformed_opening_is_refused(
    tmp_path: Path, request_fields: dict[str, Any], code: str
) -> None:
    with served(tmp_path) as (runner, s):

        async def scenario() -> None:
            usual = {"run": RUN, "replica": "a", "incarnation": 1, "layout": LAYOUT.to_proto()}
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.stub.OpenRun(pb.OpenRunRequest(**{**usual, **request_fields}), timeout=10)
            assert code_of(error.value) == code
            await unharmed(s)

        runner.run(scenario())


def test_another_model_is_refused_with_its_first_difference(tmp_path: Path) -> None:
    other = Layout(
        (TensorSpec("w", (ROWS, COLUMNS), "bfloat16"), *LAYOUT.tensors[1:]), LAYOUT.fragments
    )
    with served(tmp_path) as (runner, s):

        async def scenario() -> None:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.open(other, "b")
            assert code_of(error.value) == "LAYOUT_MISMATCH"
            assert "w is float32 in the run and bfloat16 here" in (error.value.details() or "")

        runner.run(scenario())
