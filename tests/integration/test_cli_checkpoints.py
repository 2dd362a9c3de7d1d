"""``syncline checkpoints`` against real services: saved, listed, damaged, and begun from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline.cli.app import run
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.cluster import Cluster
from syncline_testing.service import flat_layout, iter_push

SIZE = 5000
LAYOUT = flat_layout(SIZE, 3)


def begun(cluster: Cluster, name: str) -> None:
    """A run with parameters, and nobody in it any more."""
    cluster.post("/runs", {"name": name, "settings": {"codec": {"down": "fp32"}}})
    incarnation = cluster.post(f"/runs/{name}/replicas", {"replica": "a"})["incarnation"]
    with grpc.insecure_channel(cluster.sync_address) as channel:
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        life = {"run": name, "replica": "a", "incarnation": incarnation}
        stub.OpenRun(pb.OpenRunRequest(**life, layout=LAYOUT.to_proto()), timeout=20)
        for fragment, spec in enumerate(LAYOUT.fragments):
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
            pulled(cluster, name, fragment)


def pulled(cluster: Cluster, name: str, fragment: int) -> bytes:
    with grpc.insecure_channel(cluster.sync_address) as channel:
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        request = pb.PullRequest(run=name, fragment=fragment, newest=True)
        return b"".join(part.chunk.data for part in stub.Pull(request, timeout=20))


def test_a_run_is_kept_found_and_begun_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "kept"

    def done(*words: str) -> Any:
        capsys.readouterr()
        assert run(["checkpoints", *words, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    def refused(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        return run(["checkpoints", *words]), capsys.readouterr().err

    with Cluster(tmp_path) as cluster:
        monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
        begun(cluster, "first")
        assert refused("save", "nobody", str(place))[0] == 15
        made = done("save", "first", str(place))
        assert made["checkpoint"] == f"{place}/first-r0"
        assert done("save", "first", str(place), "--name", "other")["bytes"] == made["bytes"]
        code, said = refused("save", "first", str(place))
        assert code == 42 and "another name" in said and said.count("\n") == 1

        listed = done("ls", str(place), "--check")
        assert [(one["name"], one["run"], one["damage"]) for one in listed] == [
            ("first-r0", "first", None),
            ("other", "first", None),
        ]
        hurt = sorted((place / "other").glob("00001-*"))[0]
        data = bytearray(hurt.read_bytes())
        data[-1] ^= 1
        hurt.write_bytes(data)
        assert [one["damage"] for one in done("ls", str(place))] == [None, None]
        assert hurt.name in done("ls", str(place), "--check")[1]["damage"]
        code, said = refused("restore", f"{place}/other", "--run", "second")
        assert code == 43 and hurt.name in said
        assert [one["name"] for one in cluster.get("/runs")] == ["first"]

        assert refused("restore", f"{place}/first-r0", "--run", "first")[0] == 16
        assert refused("restore", f"{place}/none", "--run", "second")[0] == 42
        wrong = ("--set", "outer.lr=-1")
        assert refused("restore", f"{place}/first-r0", "--run", "second", *wrong)[0] == 10
        view = done("restore", f"{place}/first-r0", "--run", "second", "--set", "outer.lr=0.5")
        assert view["settings"]["outer"]["lr"] == 0.5
        assert view["origin"]["checkpoint"] == f"{place}/first-r0"
        for fragment in range(3):
            assert pulled(cluster, "second", fragment) == pulled(cluster, "first", fragment)
        cluster.sync.kill()
        cluster.sync.start()
        assert pulled(cluster, "second", 2) == pulled(cluster, "first", 2)
    assert refused("ls", "ftp://somewhere")[0] == 14
    assert done("ls", str(tmp_path / "nowhere")) == []
