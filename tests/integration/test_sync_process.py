"""The sync service as a process: how it starts, how it ends, and what it says when it cannot."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import grpc
import numpy as np
import pytest

from syncline_proto.names import CUT
from syncline_proto.reports import Reports
from syncline_proto.rest import (
    Membership,
)
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.files import SEAL
from syncline_sync.settings import SyncSettings
from syncline_testing.cluster import free_ports
from syncline_testing.service import RUN
from syncline_testing.sync_process import (
    at_work,
    control_plane,
    membership,
    one_sentence,
    process,
)
from syncline_testing.waiting import wait_until


@pytest.mark.parametrize("flag", ["port", "health-port", "metrics-port"])
def test_a_port_in_use(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process(tmp_path / "data", **{flag: port}) as p:
            code, said = p.ended()
    assert code == 11
    assert not (tmp_path / "data").exists()
    assert str(port) in one_sentence(said) and f"--{flag} " in said
    assert len(said.strip().splitlines()) == 1, "and nothing else"


@pytest.mark.long
def test_a_first_start_says_that_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    with process(tmp_path / "data") as p:
        p.ready(within_s=240)
        p.signal(signal.SIGTERM)
        code, said = p.ended()
    assert code == 0
    assert "compiling the arithmetic" in said.splitlines()[0]


@pytest.mark.long
def test_who_is_told_to_end_while_it_compiles_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    said = tmp_path / "said"
    with process(tmp_path / "data", stderr=said) as p:
        wait_until(lambda: "compiling the arithmetic" in said.read_text(), 60, "it compiles")
        p.signal(signal.SIGTERM)
        wait_until(lambda: "ending, once that is compiled" in said.read_text(), 60, "it heard")
        assert "listening" not in said.read_text()


def test_a_host_that_is_another_machines(tmp_path: Path) -> None:
    with process(tmp_path, host="192.0.2.1", insecure="") as p:
        code, said = p.ended()
    assert code == 10
    assert "--host" in one_sentence(said)
    assert len(said.strip().splitlines()) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with process(tmp_path / "file" / "data") as p:
        code, said = p.ended()
    assert code == 40
    assert "choose another with --data." in one_sentence(said)


def test_a_log_that_nobody_takes_stops_nothing(tmp_path: Path) -> None:
    """Its disk may be full, and that of the store not; or who reads it is gone."""
    with at_work(tmp_path, stderr=Path("/dev/full")) as p:
        assert p.push(0.5, "a", seq=2, base_revision=0).verdict == pb.VERDICT_ACCEPTED
        p.signal(signal.SIGTERM)
        assert p.ended()[0] == 0


@pytest.mark.long
def test_a_damaged_run_is_named_and_ends_nothing_else(tmp_path: Path) -> None:
    with at_work(tmp_path) as p:
        p.signal(signal.SIGTERM)
        assert p.ended()[0] == 0
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    for _ in range(2):
        with process(tmp_path) as p:
            p.ready()
            for call in (p.open, lambda: p.pull(0), lambda: p.push(1.0, "a")):
                with pytest.raises(grpc.RpcError, match=f"DATA_LOSS(?s:.*){file.name}"):
                    call()
            p.signal(signal.SIGTERM)
            code, said = p.ended()
            assert (code, said.count(file.name)) == (0, 1), said


@pytest.mark.long
def test_a_store_has_one_writer(tmp_path: Path) -> None:
    with process(tmp_path) as first:
        first.ready()
        with process(tmp_path) as second:
            code, said = second.ended()
        assert code == 10
        assert "Another sync service" in one_sentence(said)
        first.signal(signal.SIGKILL)
        first.ended()
        with process(tmp_path) as third:
            third.ready()


@pytest.mark.parametrize(
    ("sign", "exit_code"),
    [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)],
    ids=["SIGTERM", "SIGINT"],
)
def test_it_ends_well_with_calls_open(tmp_path: Path, sign: signal.Signals, exit_code: int) -> None:
    with at_work(tmp_path) as p:
        pull = p.stub.Pull(pb.PullRequest(run=RUN, revision=5))
        header = pb.PushHeader(
            run=RUN, epoch=1, replica="a", incarnation=1, seq=2, ranks=2, base_revision=0,
            kind=pb.PUSH_KIND_PSEUDO_GRADIENT, codec=pb.CODEC_FP32, inner_steps=1,
        )  # fmt: skip
        push = p.stub.Push.future(iter([pb.PushRequest(header=header)]))
        assert p.pull(0)[0] == 1.0
        p.signal(sign)
        code, said = p.ended()
        assert code == exit_code, said
        assert "Traceback" not in said
        *_, ending, reports, ended = said.strip().splitlines()
        assert "ending" in ending and sign.name in ending, said
        assert "reports" in reports and "ended" in ended, said
        with pytest.raises(grpc.RpcError):
            next(pull)
        with pytest.raises(grpc.RpcError):
            push.result()


def test_a_kill_in_mid_round_costs_nothing_that_was_published(tmp_path: Path) -> None:
    with at_work(tmp_path) as p:
        p.push(0.5, "a", seq=2, base_revision=0)
        p.push(0.25, "b", base_revision=0)
        assert p.pull(1)[0] == np.float32(0.625)
        assert p.push(0.5, "a", seq=3, base_revision=1).verdict == pb.VERDICT_ACCEPTED
        p.signal(signal.SIGKILL)
        p.ended()
    with process(tmp_path) as p:
        p.ready()
        assert p.pull(1)[0] == np.float32(0.625)
        committed = p.push(0.25, "b", base_revision=0)
        assert (committed.verdict, committed.result_revision) == (pb.VERDICT_DUPLICATE, 1)
        assert p.push(0.5, "a", seq=3, base_revision=1).verdict == pb.VERDICT_ACCEPTED
        p.push(0.5, "b", seq=2, base_revision=1)
        assert p.pull(2)[0] == np.float32(0.125)


def test_with_the_control_plane_away_it_serves_and_keeps_trying(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with process(tmp_path, control=f"http://127.0.0.1:{port}") as p:
        p.ready()
        with pytest.raises(grpc.RpcError):
            p.stub.GetRunStatus(pb.GetRunStatusRequest(run=RUN), timeout=20)
        with control_plane(port) as asked:
            p.open()  # waits until the word of the run has come
            p.push(1.0, "a", kind=pb.PUSH_KIND_PARAMETERS)
            assert p.pull(0)[0] == 1.0
            both = {"GET /v1/membership", "PUT /v1/sync-services/sync-0"}
            wait_until(lambda: both <= asked.keys(), 20, "the service has said hello too")
        kept = SEAL.open((tmp_path / "membership.json").read_bytes())
        assert Membership.model_validate_json(kept) == membership()
        p.push(0.5, "a", seq=2, base_revision=0)  # and it is away again
        p.push(0.5, "b", base_revision=0)
        assert p.pull(1)[0] == 0.5
        p.signal(signal.SIGTERM)
        _, said = p.ended()
    told = ["listening", "waiting for the control plane", "connected to the control plane"]
    places = [said.index(what) for what in told]
    assert places == sorted(places) and "last membership" not in said[: places[-1]], said


def test_the_last_rounds_are_told_before_it_ends(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with control_plane(port) as asked, at_work(tmp_path, f"http://127.0.0.1:{port}") as p:
        p.push(0.5, "a", seq=2, base_revision=0)
        p.push(0.5, "b", base_revision=0)  # judged: the round closes, whatever comes
        p.signal(signal.SIGTERM)
        code, said = p.ended()
        assert code == 0, said
    told = [Reports.model_validate_json(said) for said in asked[f"POST /v1/runs/{RUN}/reports"]]
    assert [r.revision for reports in told for r in reports.rounds] == [0, 1]
    assert list(asked)[-1] == "DELETE /v1/sync-services/sync-0", "and last, that it ends"
    (ending,) = asked["DELETE /v1/sync-services/sync-0"]
    assert parse_qs(ending.decode()).keys() == {"instance"}, "it was told to: there is no reason"


def test_why_it_ends_of_itself_is_told(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with control_plane(port) as asked, at_work(data, f"http://127.0.0.1:{port}") as p:
        data.rename(elsewhere)
        p.push(0.5, "a", seq=2, base_revision=0)
        p.push(0.5, "b", base_revision=0)
        code, said = p.ended()
        assert code == 40, said
    (ending,) = asked["DELETE /v1/sync-services/sync-0"]
    (why,) = parse_qs(ending.decode())["why"]
    assert why.startswith(f"The store's folder {data} was moved, removed or unmounted")
    assert why.removesuffix(CUT) in " ".join(said.split()), "its own last words"


@pytest.mark.long
def test_with_the_control_plane_away_it_ends_all_the_same(tmp_path: Path) -> None:
    with at_work(tmp_path) as p:
        p.signal(signal.SIGTERM)
        code, said = p.ended()
        assert code == 0, said
        assert "the last reports were not taken" in said


@pytest.mark.parametrize(
    ("status", "exit_code", "word"),
    [
        (200, 10, "--control"),
        (401, 19, "SYNCLINE_SYNC_TOKEN"),
        *(
            pytest.param(status, 10, "--control", marks=pytest.mark.long)
            for status in (301, 404, 500)
        ),
        pytest.param(403, 19, "SYNCLINE_SYNC_TOKEN", marks=pytest.mark.long),
    ],
)
def test_what_answers_but_is_not_our_control_plane_is_told(
    tmp_path: Path, status: int, exit_code: int, word: str
) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        do_PUT = do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    other = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    serving = threading.Thread(target=other.serve_forever)
    serving.start()
    try:
        with process(tmp_path, control=f"http://127.0.0.1:{other.server_port}") as p:
            code, said = p.ended()
    finally:
        other.shutdown()
        serving.join()
        other.server_close()
    assert code == exit_code
    assert word in one_sentence(said)
    assert "connected" not in said
    assert "html" not in said, "and what it sent is not repeated"


def test_a_fault_of_ours_is_one_sentence_with_the_traceback_in_the_log(tmp_path: Path) -> None:
    broken = "from syncline_sync import command, process; process.Host = None; command.main()"
    ports = [
        flag for name in ("port", "health-port", "metrics-port") for flag in (f"--{name}", "0")
    ]
    done = subprocess.run(
        [sys.executable, "-c", broken, "--data", str(tmp_path), *ports],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    *log, last = done.stdout.strip().splitlines()
    assert last.startswith("syncline-sync: a fault of ours: TypeError"), done.stdout
    assert "Traceback (most recent call last):" in "\n".join(log)


def test_where_no_thread_can_be_started_it_comes_to_rest_and_the_first_error_is_told(
    tmp_path: Path,
) -> None:
    """The doors cannot be shut either then; that does not hide what came first."""
    broken = """
import threading
from syncline_sync import command, process

async def scant(*_):
    def start(_):
        raise RuntimeError("can't start new thread")
    threading.Thread.start = start
    raise OSError(12, "no memory for a merge")

process.Host.caught_up = scant
command.main()
"""
    ports = [
        flag for name in ("port", "health-port", "metrics-port") for flag in (f"--{name}", "0")
    ]
    done = subprocess.run(
        [sys.executable, "-c", broken, "--data", str(tmp_path / "data"), *ports],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    *log, last = done.stdout.strip().splitlines()
    assert last.startswith("syncline-sync: a fault of ours: OSError"), done.stdout
    ending = [line for line in log if "no more calls are taken" in line]
    assert len(ending) == 1 and "no memory for a merge" in ending[0]
    assert sum("there is another error" in line for line in log) >= 1, "of its end"


def test_help_tells_what_there_is_to_know(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "syncline_sync", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for part in ("Examples:\n    syncline-sync\n", "Environment", "Exit codes"):
        assert part in done.stdout
    told = re.sub(r"\s+", " ", done.stdout)
    for name, setting in SyncSettings.model_fields.items():
        assert f"_{name.upper()}" in told
        flag = f"--{name.replace('_', '-')} "
        if flag in told and setting.default:
            default = re.search(rf"{flag}[A-Z]+ .*?\[default: (.*?)\]", told)
            assert default, flag
            told_so = SyncSettings.model_validate({name: default[1]})
            assert getattr(told_so, name) == getattr(SyncSettings(), name)
            assert str(setting.default) in str(getattr(told_so, name))
