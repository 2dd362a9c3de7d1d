"""The doors: health on both ports, reflection, metrics; and how the line to control speaks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from syncline_proto.errors import PortInUse, RunUnknown
from syncline_proto.v1 import checkpoints_pb2, checkpoints_pb2_grpc, sync_pb2_grpc
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.residence import Residence
from syncline_sync.run import RunHost
from syncline_sync.serving import CHECKPOINTS, SERVICE, bind
from syncline_sync.settings import SyncSettings
from syncline_testing.doors import doors, health, servicers
from syncline_testing.service import code_of, flat_layout

SERVING = health_pb2.HealthCheckResponse.SERVING


def test_health_answers_on_both_ports_and_reflection_names_the_service(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doors(tmp_path) as (opened, _):
            assert len({opened.port, opened.health_port, opened.metrics_port}) == 3
            for port in (opened.port, opened.health_port):
                for name in ("", SERVICE, CHECKPOINTS):
                    assert await health(port, name) == SERVING
            async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
                stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
                request: Any = reflection_pb2.ServerReflectionRequest
                ask = request(list_services="")
                async for answer in stub.ServerReflectionInfo(iter([ask]), timeout=10):
                    names = {row.name for row in answer.list_services_response.service}
                    assert names >= {SERVICE, CHECKPOINTS, "grpc.health.v1.Health"}
                ask = request(file_containing_symbol=SERVICE)
                async for answer in stub.ServerReflectionInfo(iter([ask]), timeout=10):
                    assert answer.file_descriptor_response.file_descriptor_proto
        for port in (opened.port, opened.health_port):
            with pytest.raises(grpc.aio.AioRpcError):
                await health(port, "")

    asyncio.run(scenario())


def test_metrics_have_one_prefix_and_are_there_from_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doors(tmp_path) as (opened, _):
            url = f"http://127.0.0.1:{opened.metrics_port}/metrics"
            async with httpx.AsyncClient(trust_env=False) as client:
                text = (await client.get(url)).text
                other = await client.get(url.removesuffix("metrics"))
                assert (other.status_code, other.text) == (404, "Metrics are at /metrics.\n")
            names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
            assert "syncline_pushes_total" in names
            assert all(name.startswith("syncline_") for name in names)

    asyncio.run(scenario())


@pytest.mark.parametrize("which", ["port", "health_port", "metrics_port"])
def test_a_port_in_use_is_named(tmp_path: Path, which: str) -> None:
    async def scenario() -> None:
        async with doors(tmp_path) as (opened, s):
            taken = getattr(opened, which)
            ports = {"port": 0, "health_port": 0, "metrics_port": 0, which: taken}
            flag = which.replace("_", "-")
            names = f"{taken}.*--{flag} .SYNCLINE_SYNC_{which.upper()}"
            with pytest.raises(PortInUse, match=names):
                bind(SyncSettings(**ports), *servicers(s), s.shared.metrics, s.shared.fail)

    asyncio.run(scenario())


def test_with_a_token_only_who_has_it_may_call_and_one_door_is_for_probes(tmp_path: Path) -> None:
    async def refused(call: Any) -> bool:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        trailer = dict(error.value.trailing_metadata() or ())
        return trailer.get("syncline-code") == "FORBIDDEN"

    async def first(stream: Any) -> Any:
        return await anext(aiter(stream))

    async def scenario() -> None:
        async with doors(tmp_path, token="secret") as (opened, _):
            assert await health(opened.health_port, "") == SERVING
            assert await refused(health(opened.port, ""))
            async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
                stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
                ask = pb.GetRunStatusRequest(run="none")
                assert await refused(stub.GetRunStatus(ask, timeout=10))
                assert await refused(stub.Push(iter([pb.PushRequest()]), timeout=10))
                assert await refused(first(stub.Pull(pb.PullRequest(run="none"), timeout=10)))
                keeping: Any = checkpoints_pb2_grpc.CheckpointServiceStub(channel)
                there = str(tmp_path / "there")
                save = checkpoints_pb2.SaveFragmentsRequest(run="none", url=there, fragments=[0])
                assert await refused(first(keeping.SaveFragments(save, timeout=10)))
                fetch = checkpoints_pb2.RestoreFragmentsRequest(run="none", url=there)
                assert await refused(first(keeping.RestoreFragments(fetch, timeout=10)))
                assert not (tmp_path / "there").exists()
                wrong = (("authorization", "Bearer other"),)
                assert await refused(stub.GetRunStatus(ask, timeout=10, metadata=wrong))
                right = (("authorization", "Bearer secret"),)
                assert await health(opened.port, "", metadata=right) == SERVING
                assert not await refused(stub.GetRunStatus(ask, timeout=10, metadata=right))

    asyncio.run(scenario())


METHODS = {
    "/syncline.sync.v1.SyncService/OpenRun": "unary_unary",
    "/syncline.sync.v1.SyncService/Push": "stream_unary",
    "/syncline.sync.v1.SyncService/Pull": "unary_stream",
    "/syncline.sync.v1.SyncService/GetRunStatus": "unary_unary",
    "/syncline.sync.v1.CheckpointService/SaveFragments": "unary_stream",
    "/syncline.sync.v1.CheckpointService/SealCheckpoint": "unary_unary",
    "/syncline.sync.v1.CheckpointService/ReadCheckpoint": "unary_unary",
    "/syncline.sync.v1.CheckpointService/RestoreFragments": "unary_stream",
    "/grpc.health.v1.Health/Check": "unary_unary",
    "/grpc.health.v1.Health/Watch": "unary_stream",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "stream_stream",
}
JUNK = (b"\xff" * 50, b"\x0a\x05\xff\xfe\xfd\xfc\xfb", b"\x0a")


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_the_callers_fault(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind = METHODS[method]

    async def refused(channel: grpc.aio.Channel, junk: bytes) -> grpc.aio.AioRpcError:
        request = iter([junk]) if kind.startswith("stream") else junk
        call: Any = getattr(channel, kind)(method)(request, timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await (anext(aiter(call)) if kind.endswith("stream") else call)
        return error.value

    async def scenario() -> None:
        async with doors(tmp_path) as (opened, s):
            await s.members({"a": 1})
            await s.open(flat_layout(), "a")
            before = await s.status()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
                for junk in JUNK:
                    error = await refused(channel, junk)
                    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                    assert code_of(error) == "INVALID_REQUEST"
                    assert (error.details() or "").startswith("request: ")
            assert await s.status() == before
            assert not s.faults

    with capture_logs() as logs:
        asyncio.run(scenario())
    ours = [line for line in logs if line["event"] == "bytes that are no message"]
    assert [line["method"] for line in ours] == [method] * len(JUNK)
    assert not [line for line in logs if "exc_info" in line]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_what_is_compressed_is_refused_unread_at_every_door(
    tmp_path: Path, how: grpc.Compression
) -> None:
    """It would be a thousand times as long in memory before anything of ours could look at it."""
    at_probes = "/grpc.health.v1.Health/Check"

    async def scenario() -> None:
        async with doors(tmp_path) as (opened, s):
            calls = [(method, opened.port) for method in METHODS]
            for method, port in (*calls, (at_probes, opened.health_port)):
                kind = METHODS[method]
                target = f"127.0.0.1:{port}"
                async with grpc.aio.insecure_channel(target, compression=how) as channel:
                    call: Any = getattr(channel, kind)(method)
                    # A stream's call is refused before it has a message.
                    call = call(timeout=20) if kind.startswith("stream") else call(b"", timeout=20)
                    with pytest.raises(grpc.aio.AioRpcError) as error:
                        await (call.read() if kind.endswith("stream") else call)
                assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED, method
                assert "is disabled" in (error.value.details() or "")
            assert not s.faults

    asyncio.run(scenario())


def test_a_sentence_that_is_too_long_is_cut_where_grpc_would_keep_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_residence: Residence, _name: str) -> RunHost:
        raise RunUnknown("é" * 10_000)

    async def scenario() -> None:
        async with doors(tmp_path) as (_, s):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.status()
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
            assert code_of(error.value) == "RUN_UNKNOWN"
            assert set(error.value.details() or "") == {"é"}

    monkeypatch.setattr(Residence, "run", refuse)
    asyncio.run(scenario())


def test_every_method_is_in_the_list_above() -> None:
    for schema, service in ((pb, SERVICE), (checkpoints_pb2, CHECKPOINTS)):
        methods = {m.name for m in schema.DESCRIPTOR.services_by_name[service[17:]].methods}
        assert methods == {name.rpartition("/")[2] for name in METHODS if service in name}


def test_the_control_plane_is_named_as_replicas_name_it() -> None:
    assert SyncSettings(control="control:8500/").control == "http://control:8500"
    with pytest.raises(ValueError, match="only http and https are spoken; write http://HOST:PORT"):
        SyncSettings(control="nonsense://x")


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a manifest may name them all, and leave empty what it does not set."""
    for name in SyncSettings.model_fields:
        monkeypatch.delenv(f"SYNCLINE_SYNC_{name.upper()}", raising=False)
    unset = SyncSettings()
    for name in SyncSettings.model_fields:
        monkeypatch.setenv(f"SYNCLINE_SYNC_{name.upper()}", "")
    assert SyncSettings() == unset


def test_strangers_are_not_let_in_without_a_token() -> None:
    with pytest.raises(ValueError, match="there is no token"):
        SyncSettings(host="0.0.0.0")
    assert SyncSettings(host="10.0.0.5", token="secret").token
    assert SyncSettings(host="10.0.0.5", insecure=True).insecure


def test_who_has_no_token_is_refused_before_anything_of_his_request_is_taken(
    tmp_path: Path,
) -> None:
    """Even one who never comes to the end of it; and a probe may be no longer than a name."""

    async def scenario() -> None:
        async with doors(tmp_path, token="secret") as (opened, _):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
                open_run: Any = channel.stream_unary("/syncline.sync.v1.SyncService/OpenRun")
                call = open_run(timeout=20)
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await call  # nothing was sent, and the request stays open
                assert code_of(refusal.value) == "FORBIDDEN"
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await health(opened.health_port, "x" * 8192)
            assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(scenario())
