"""The trainer as a member of a run, against the real control plane and sync service."""

from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from syncline.cli.app import run as run_command
from syncline.train.config import JobConfig
from syncline.train.export import export_run
from syncline.train.export_kept import export_kept
from syncline.train.loop import Trainer
from syncline.train.ranks import RankGroup
from syncline_proto.errors import ConfigError, RunConflict, RunUnknown
from syncline_proto.rest import RunCreate
from syncline_testing.cluster import Cluster
from syncline_testing.training import STEP_TOKENS, Recorder, tiny_job, to_toml
from syncline_testing.waiting import wait_until
from syncline_testing.warm import Program, warm, warm_ranks

SYNC_EVERY = 4
TIMEOUT_S = 100


def settings(name: str, replicas: int, steps: int) -> dict[str, Any]:
    return {
        "name": name,
        "sync_every": SYNC_EVERY,
        "min_replicas": replicas,
        "token_budget": replicas * steps * STEP_TOKENS,
        "timeouts": {"lease": 5.0, "round_deadline": 60.0},
    }


def trainer(folder: Path, job: JobConfig, name: str) -> list[str]:
    path = folder / f"{name}.toml"
    path.write_text(to_toml(job))
    return ["-m", "syncline.train", str(path), "--replica", name, "--progress", "json"]


def replica(
    cluster: Cluster, folder: Path, job: JobConfig, name: str, *arguments: str
) -> AbstractContextManager[Program]:
    train = trainer(folder, job, name)
    return warm(*train, *arguments, SYNCLINE_CONTROL=cluster.control_url)


def told_by(process: Program) -> list[dict[str, Any]]:
    lines, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in lines.splitlines()]


def test_replicas_of_one_and_two_ranks_end_with_one_model(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    run = {**settings("pair", replicas=2, steps=24), "warmup_steps": 2}
    one = tiny_job(data, steps=24, run=run)
    two = tiny_job(data, steps=24, run=run, train={"micro_batch": 2})
    with ExitStack() as stack:
        wide = warm_ranks(*trainer(tmp_path, two, "two"), SYNCLINE_CONTROL=cluster.control_url)
        first, second = stack.enter_context(wide)
        single = stack.enter_context(replica(cluster, tmp_path, one, "one"))
        told = [told_by(process) for process in (single, first)]
        assert told_by(second) == [], "rank 0 says it for both"

    # In the synchronous phase it is the mean gradient that both measure and clip.
    norms = [[e["grad_norm"] for e in lines if e["event"] == "progress"] for lines in told]
    assert norms[0][:2] == pytest.approx(norms[1][:2], rel=1e-4)
    assert norms[0][2] != pytest.approx(norms[1][2], rel=1e-4)
    ends = [lines[-1] for lines in told]
    assert [end["reason"] for end in ends] == ["budget", "budget"]
    assert ends[0]["tokens"] == ends[1]["tokens"] >= run["token_budget"]
    assert ends[0]["rounds"] == ends[1]["rounds"] > 0
    assert ends[0]["held_out_merged"] == pytest.approx(ends[1]["held_out_merged"], abs=1e-5)
    for end in ends:
        assert end["bits_per_byte_merged"] < end["bits_per_byte_start"] - 0.5
        assert end["held_out_local"] is not None

    view = cluster.get("/runs/pair")
    assert view["state"] == "finished"
    assert view["job"]["model"]["config"]["vocab_size"] == 257
    kinds = {(series["replica"], series["kind"]) for series in cluster.get("/runs/pair/metrics")}
    assert {("one", "train"), ("one", "held-out"), ("two", "merged")} <= kinds

    exported = export_run("pair", cluster.control_url, tmp_path / "out")
    with pytest.raises(ConfigError, match="holds an export of the run pair already.*--overwrite"):
        export_run("pair", cluster.control_url, tmp_path / "out")
    again = export_run("pair", cluster.control_url, tmp_path / "out", overwrite=True)
    assert again == exported
    assert exported.revision == ends[0]["revision"]
    assert exported.committed_tokens == ends[0]["tokens"]
    model = AutoModelForCausalLM.from_pretrained(exported.folder, local_files_only=True)
    assert exported.parameters == sum(p.numel() for p in model.parameters())
    # What everybody holds is what the bf16 downlink decodes to.
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, parameter.bfloat16().float()), name

    place = tmp_path / "kept"
    save = ["checkpoints", "save", "pair", str(place), "--control", cluster.control_url]
    assert run_command([*save, "--name", "last"]) == 0
    kept = export_kept(f"{place}/last", tmp_path / "from-kept")
    assert (kept.run, kept.revision, kept.committed_tokens) == (
        "pair", exported.revision, exported.committed_tokens,
    )  # fmt: skip
    exact = AutoModelForCausalLM.from_pretrained(kept.folder, local_files_only=True)
    differs = 0
    for name, parameter in model.named_parameters():
        precise = exact.get_parameter(name)
        assert torch.equal(parameter, precise.bfloat16().float()), name
        differs += not torch.equal(parameter, precise)
    assert differs, "it is the service's own, in fp32"


def test_a_drained_replica_leaves_and_comes_back(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    kept = {"folder": tmp_path / "kept"}
    endless = settings("drained", replicas=1, steps=100_000)
    job = tiny_job(data, steps=4, run=endless, checkpoint=kept)
    with replica(cluster, tmp_path, job, "first") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("revision", 0) >= 1:
                break
        process.send_signal(signal.SIGTERM)
        last = told_by(process)[-1]
    assert last["event"] == "end" and last["reason"] == "drained"
    (view,) = cluster.get("/runs/drained/replicas")
    assert view["state"] == "left"
    committed = last["inner_step"] * STEP_TOKENS
    # The sync service reports its rounds a moment after it has answered them.
    wait_until(
        lambda: cluster.get("/runs/drained")["committed_tokens"] == committed,
        seconds=20,
        what="what was done is pushed before leaving",
    )

    with replica(cluster, tmp_path, job, "first", "--resume") as process:
        assert process.stdout is not None
        told = (json.loads(line) for line in process.stdout)
        first = next(one for one in told if one["event"] == "progress")
        process.send_signal(signal.SIGTERM)
        told_by(process)
    assert first["inner_step"] == last["inner_step"] + 1
    assert first["tokens"] == committed + STEP_TOKENS


def test_a_stopped_run_ends_with_its_merged_model_evaluated(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    endless = settings("stopped", replicas=1, steps=100_000)
    job = tiny_job(data, steps=4, run=endless)
    with replica(cluster, tmp_path, job, "only") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("revision", 0) >= 1:
                break
        cluster.post("/runs/stopped/stop")
        last = told_by(process)[-1]
    assert (last["event"], last["reason"]) == ("end", "stopped")
    assert last["bits_per_byte_merged"] < last["bits_per_byte_start"]
    said: list[str] = []
    exported = export_run("stopped", cluster.control_url, tmp_path / "out", say=said.append)
    assert exported.revision == last["revision"] > 0
    assert said == [
        "Fetching the newest revision of stopped ...",
        f"Writing revision {exported.revision} to {tmp_path / 'out'} ...",
    ]


def test_what_a_streaming_run_ends_with_is_what_was_evaluated(
    cluster: Cluster, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
    how = {"sync_every": 4, "fragment_groups": 2, "overlap_steps": 1}
    trainer = Trainer(
        tiny_job(data, steps=8, run={"name": "streamed", **how}), RankGroup(), Recorder()
    )
    ending = trainer.run()
    assert ending.reason == "budget" and trainer.replica.done
    assert ending.held_out_merged == trainer._evaluator().loss != ending.held_out_local


def test_only_a_run_that_has_begun_is_exported(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunUnknown):
        export_run("nobody", cluster.control_url, tmp_path)
    cluster.post("/runs", RunCreate(name="own-loop").model_dump(mode="json"))
    with pytest.raises(ConfigError, match="names no model, so no tokenizer"):
        export_run("own-loop", cluster.control_url, tmp_path, data=data)
    job = tiny_job(data, steps=4).to_job()
    cluster.post("/runs", RunCreate(name="not-begun", job=job).model_dump(mode="json"))
    with pytest.raises((RunConflict, RunUnknown)):
        export_run("not-begun", cluster.control_url, tmp_path)
