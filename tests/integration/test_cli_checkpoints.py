"""``syncline checkpoints`` against real services: saved, listed, damaged, and begun from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from syncline.cli.app import run
from syncline.train.exported import PARAMETERS
from syncline_proto.manifest import MANIFEST
from syncline_proto.owners import owners
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing import buckets
from syncline_testing.cluster import Cluster
from syncline_testing.service import flat_layout, iter_push
from syncline_testing.waiting import wait_until

pytestmark = buckets.QUIET

SIZE = 5000
LAYOUT = flat_layout(SIZE, 3)


def begun(cluster: Cluster, name: str, rounds: tuple[int, ...] = (1, 1, 1)) -> None:
    """A run of so many rounds of each fragment, of 30 tokens each."""
    cluster.post("/runs", {"name": name, "settings": {"codec": {"down": "fp32"}}})
    incarnation = cluster.post(f"/runs/{name}/replicas", {"replica": "a"})["incarnation"]
    life = {"run": name, "replica": "a", "incarnation": incarnation}
    for fragment, spec in enumerate(LAYOUT.fragments):
        with grpc.insecure_channel(owner_of(cluster, fragment)) as channel:
            stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
            stub.OpenRun(pb.OpenRunRequest(**life, layout=LAYOUT.to_proto()), timeout=20)
            header = pb.PushHeader(
                **life,
                epoch=1,
                fragment=fragment,
                seq=1,
                ranks=1,
                kind=pb.PUSH_KIND_PARAMETERS,
                codec=pb.CODEC_FP32,
                boxes=[box.to_proto() for box in spec.boxes],
            )
            stub.Push(iter_push(header, np.full(SIZE, fragment, np.float32)), timeout=20)
            pulled(cluster, name, fragment, revision=0)
            round_: Any = {"inner_steps": 1, "tokens": 30, "first_step": 1, "last_step": 1}
            header.kind = pb.PUSH_KIND_PSEUDO_GRADIENT
            for base in range(rounds[fragment]):
                header.MergeFrom(pb.PushHeader(seq=2 + base, base_revision=base, **round_))
                stub.Push(iter_push(header, np.ones(SIZE, np.float32)), timeout=20)
                pulled(cluster, name, fragment, revision=base + 1)


def owner_of(cluster: Cluster, fragment: int) -> str:
    """The address of the service that has this fragment of every run."""
    sizes = [spec.numel for spec in LAYOUT.fragments]
    return cluster.sync_addresses[owners(sizes, len(cluster.sync_addresses))[fragment]]


def pulled(cluster: Cluster, name: str, fragment: int, **which: Any) -> bytes:
    """A fragment's values of this revision; the newest where none is named."""
    with grpc.insecure_channel(owner_of(cluster, fragment)) as channel:
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        request = pb.PullRequest(run=name, fragment=fragment, **(which or {"newest": True}))
        return b"".join(part.chunk.data for part in stub.Pull(request, timeout=20))


def exported(told: Any) -> list[bytes]:
    """Each fragment's values, in what export says it has made of a run that has no job."""
    tensors = load_file(Path(told["folder"]) / PARAMETERS)
    return [tensors[spec.name].tobytes() for spec in LAYOUT.tensors]


@pytest.fixture
def bucket() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    with buckets.bucket(server, "commands") as url:
        yield url


def commands(
    capsys: pytest.CaptureFixture[str],
) -> tuple[Callable[..., Any], Callable[..., tuple[int, str]]]:
    """What a command that ends well says as JSON; how one ends that does not, and its words."""

    def done(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        ended = run(["checkpoints", *words, "--json"])
        shown = capsys.readouterr()
        assert ended == code, shown.err
        return json.loads(shown.out)

    def refused(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        return run(["checkpoints", *words]), capsys.readouterr().err

    return done, refused


def test_an_address_of_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, refused = commands(capsys)
    for command in (("ls",), ("export", "--out", str(tmp_path / "out"))):
        assert refused(*command, "ftp://somewhere")[0] == 10
        assert refused(*command, "")[0] == 10
        assert refused(*command, str(tmp_path / "nowhere"))[0] == 42
    code, said = refused("export", "kept/No-Name", "--out", str(tmp_path / "out"))
    assert code == 10 and "kept/No-Name" in said, "as it was written"


def test_a_run_that_nobody_has_joined_is_none_to_keep_or_export_and_is_no_unknown_one(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, refused = commands(capsys)
    monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
    cluster.post("/runs", {"name": "early"})
    begin = "start one (syncline train JOB --run early), then try again."
    code, said = refused("save", "early", str(tmp_path / "kept"))
    assert code == 16 and "Run early has no parameters yet, for no replica" in said
    assert begin in said
    assert run(["export", "early", "--out", str(tmp_path / "out")]) == 16
    assert begin in capsys.readouterr().err
    assert run(["export", "never-created", "--out", str(tmp_path / "out")]) == 15
    assert "Loading" not in capsys.readouterr().err
    for act, done in (("pause", "paused"), ("pause", "paused already"), ("resume", "running")):
        assert run(["runs", act, "early"]) == 0
        assert capsys.readouterr().out == f"early is {done}.\n"
    cluster.post("/runs/early/stop")
    code, said = refused("save", "early", str(tmp_path / "kept"))
    assert code == 16 and "Run early ended before it had parameters" in said
    assert refused("save", "never-created", str(tmp_path / "kept"))[0] == 15


def test_a_run_is_kept_and_begun_from_where_torch_is_not_installed(
    cluster: Cluster, tmp_path: Path
) -> None:
    begun(cluster, "without-torch")
    kept = {key: text for key, text in os.environ.items() if not key.startswith("SYNCLINE_")}
    kept["SYNCLINE_CONTROL"] = cluster.control_url
    program = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from syncline.cli.app import run
sys.exit(run(["checkpoints", *sys.argv[1:]]))
"""

    def done(*words: str) -> Any:
        command = [sys.executable, "-c", program, *words, "--json"]
        ended = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    where = done("save", "without-torch", str(tmp_path / "kept"))["checkpoint"]
    assert done("ls", str(tmp_path / "kept"))
    assert done("restore", where, "--run", "without-torch-anew")
    name = "without-torch"
    assert pulled(cluster, f"{name}-anew", 0) == pulled(cluster, name, 0)


def test_a_run_is_kept_found_and_begun_from(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "kept"
    done, refused = commands(capsys)
    monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
    begun(cluster, "first")
    assert refused("save", "nobody", str(place))[0] == 15
    made = done("save", "first", str(place))
    assert made["checkpoint"] == f"{place}/first-r1"
    assert done("save", "first", str(place), "--name", "other")["bytes"] == made["bytes"]
    code, said = refused("save", "first", str(place))
    assert code == 42 and "another name" in said and said.count("\n") == 1
    for name in ("a/b", "", "Upper"):
        code, said = refused("save", "first", str(place), "--name", name)
        assert code == 10 and "lower-case letters" in said
    assert refused("save", "first", "")[0] == 10
    assert refused("save", "first", str(cluster.folder / "store" / "kept"))[0] == 10
    assert done("save", "first", str(place), "--name", "latest")["revision"] == 1

    def told() -> list[str]:
        kinds = [one["kind"] for one in cluster.get("/events?run=first")]
        return sorted(kind for kind in kinds if kind.startswith("checkpoint."))

    ends = ["failed", "saved", "saved", "saved"]
    wait_until(lambda: told() == [f"checkpoint.{end}" for end in ends], 10, "events are told")

    listed = done("ls", str(place), "--check")
    assert [(one["name"], one["run"], one["damage"]) for one in listed] == [
        ("first-r1", "first", None),
        ("other", "first", None),
        ("latest", "first", None),
    ], "the newest last"
    hurt = sorted((place / "other").glob("00001-*"))[0]
    data = bytearray(hurt.read_bytes())
    data[-1] ^= 1
    hurt.write_bytes(data)
    assert [one["damage"] for one in done("ls", str(place))] == [None] * 3
    assert hurt.name in done("ls", str(place), "--check", code=43)[1]["damage"]
    code, said = refused("ls", str(place), "--check")
    assert code == 43 and f"1 of 3 checkpoints in {place} is damaged" in said
    code, said = refused("restore", f"{place}/other", "--run", "second")
    assert code == 43 and hurt.name in said and "have another checksum" in said
    assert "second" not in [one["name"] for one in cluster.get("/runs")]

    assert refused("restore", f"{place}/first-r1", "--run", "first")[0] == 16
    assert refused("restore", f"{place}/none", "--run", "second")[0] == 42
    for wrong, why in (
        ("run.outer.lr=-1", "outer.lr"),
        ("model.path=there", "model is a job's; here only the run's settings"),
        ("run.nothing=3", "--set: run.nothing is not a setting."),
        ("outer.rl=3", "--set: run.outer.rl is not a setting; did you mean run.outer.lr?"),
        ("run.blocks_per_fragment=2", "blocks_per_fragment: the fragments stay"),
    ):
        restore = ("restore", f"{place}/first-r1", "--run", "second", "--set", wrong)
        code, said = refused(*restore)
        assert code == 10 and why in said
    changes = ("--set", "run.outer.lr=0.5", "--set", "sync_every=8")
    view = done("restore", f"{place}/first-r1", "--run", "second", *changes)
    assert view["settings"]["sync_every"] == 8
    assert view["settings"]["outer"]["lr"] == 0.5
    assert (view["revision"], view["committed_tokens"]) == (1, 30)
    code = run(["runs", "show", "second"])
    assert code == 0 and "waits for replicas" in capsys.readouterr().out
    assert view["origin"]["checkpoint"] == f"{place}/first-r1"
    newest = [pulled(cluster, "first", fragment) for fragment in range(3)]
    assert [pulled(cluster, "second", fragment) for fragment in range(3)] == newest
    cluster.sync.kill()
    cluster.sync.start()
    assert pulled(cluster, "second", 2) == newest[2]
    assert refused("export", f"{place}/No-Name", "--out", str(tmp_path / "out"))[0] == 10
    assert done("ls", str(cluster.folder / "store")) == []
    its = {"": f"is a checkpoint itself; list {place}.", f"/{MANIFEST}": "is a file, and no folder"}
    for below, why in its.items():
        code, said = refused("ls", f"{place}/first-r1{below}")
        assert code == 42 and why in said
    assert exported(done("export", f"{place}/first-r1", "--out", str(tmp_path / "o"))) == newest


def test_a_run_goes_from_one_service_to_two_and_back(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each of the services has its part of the new run at work once the command has ended."""
    done, _ = commands(capsys)
    place = tmp_path / "kept"
    with Cluster(tmp_path, shards=2) as two:
        assert len({owner_of(two, fragment) for fragment in range(3)}) == 2
        begun(cluster, "alone")
        newest = [pulled(cluster, "alone", fragment) for fragment in range(3)]
        for here, there, was, name in (
            (cluster, two, "alone", "shared"),
            (two, cluster, "shared", "again-alone"),
        ):
            monkeypatch.setenv("SYNCLINE_CONTROL", here.control_url)
            made = done("save", was, str(place))
            monkeypatch.setenv("SYNCLINE_CONTROL", there.control_url)
            view = done("restore", made["checkpoint"], "--run", name)
            assert (view["revision"], view["committed_tokens"]) == (1, 30)
            assert [pulled(there, name, fragment) for fragment in range(3)] == newest
        first, second = (exported(done("export", f"{place}/{run}-r1", "--out", f"{tmp_path}/{run}"))
                         for run in ("alone", "shared"))  # fmt: skip
        assert first == second == newest


@pytest.mark.long
def test_all_of_it_goes_to_a_bucket_and_comes_from_there(
    tmp_path: Path,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done, refused = commands(capsys)
    place, out = f"{bucket}/kept", str(tmp_path / "out")
    with Cluster(tmp_path) as cluster:  # begun now: it finds the bucket's server
        monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
        begun(cluster, "first")
        made = done("save", "first", place)
        assert made["checkpoint"] == f"{place}/first-r1"
        code, said = refused("save", "first", place)
        assert code == 42 and "another name" in said
        view = done("restore", f"{place}/first-r1", "--run", "second")
        assert (view["revision"], view["origin"]["checkpoint"]) == (1, f"{place}/first-r1")
        newest = [pulled(cluster, "first", fragment) for fragment in range(3)]
        assert [pulled(cluster, "second", fragment) for fragment in range(3)] == newest
        assert refused("restore", f"{place}/none", "--run", "third")[0] == 42
    # Without any service, these read the bucket themselves.
    listed = done("ls", place, "--check")
    assert [(one["name"], one["run"], one["damage"]) for one in listed] == [
        ("first-r1", "first", None)
    ]
    assert refused("export", f"{place}/none", "--out", out)[0] == 42
    assert exported(done("export", f"{place}/first-r1", "--out", out)) == newest


def test_where_fragments_stand_apart_no_round_of_them_is_untold_and_none_is_kept(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The service is killed before it has told the rounds that it has committed."""
    monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
    begun(cluster, "apart", (1, 3, 1))
    cluster.sync.kill()
    cluster.sync.start()
    heard = "the rounds that the kill left untold are told"
    wait_until(lambda: cluster.get("/runs/apart")["fragment_rounds"] == 5, 10, heard)
    _, refused = commands(capsys)
    code, said = refused("save", "apart", str(tmp_path / "kept"))
    assert code == 21 and "fragment 1: revision 1 is gone; the newest is 3." in said
    assert "let those that are ahead sit out" in said
    cluster.sync.stop()
    try:
        code, away = refused("save", "apart", str(tmp_path / "kept"))
    finally:
        cluster.sync.start()
    assert code == 30 and "No sync service is alive" in away
    # Who had cron do it is not there to hear it.
    told = [one for one in cluster.get("/events?run=apart") if one["kind"] == "checkpoint.failed"]
    assert all(one["message"] in words for one, words in zip(told, (said, away), strict=True))
