"""What is seen of a trainer from outside, while it takes part in a run."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import httpx

from syncline_proto.errors import PortInUse
from syncline_testing.cluster import Cluster, free_ports
from syncline_testing.training import STEP_TOKENS, tiny_job, to_toml
from syncline_testing.warm import warm

RUN = {"sync_every": 4, "timeouts": {"lease": 5.0, "round_deadline": 60.0}}


def test_prometheus_reads_a_replica_of_a_run(data: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    seen = {"metrics_port": port, "peak_flops": 1e12}
    job = tmp_path / "job.toml"
    job.write_text(to_toml(tiny_job(data, steps=1_000_000, run=RUN, log=seen)))
    argv = ["-m", "syncline.train", str(job), "--replica", "one", "--progress", "json"]
    with (
        Cluster(tmp_path) as cluster,
        warm(*argv, SYNCLINE_CONTROL=cluster.control_url) as process,
    ):
        assert process.stdout is not None
        told = (json.loads(line) for line in process.stdout)
        last = next(one for one in told if one.get("revision", 0) >= 2)
        url = f"http://127.0.0.1:{port}/metrics"
        text = httpx.get(url, trust_env=False).raise_for_status().text
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=100)[1].count("error: ") == 0
    found = {
        name: float(value)
        for name, value in re.findall(
            r'^syncline_worker_(\w+)\{.*replica="one",run="tiny"\} (\S+)$', text, re.MULTILINE
        )
    }
    steps = found["inner_steps_total"]
    assert found["tokens_total"] == steps * STEP_TOKENS and steps >= last["inner_step"]
    assert found["revision"] >= 2 and found["rounds_total"] >= 2
    assert found["exposed_sync_seconds_total"] >= last["exposed_sync_s"]
    for name in ("loss", "grad_norm", "inner_lr", "tokens_per_second", "mfu_ratio"):
        assert found[name] > 0, name
    moved = re.findall(r'^syncline_worker_bytes_total\{direction="(\w+)".*\} (\S+)$', text, re.M)
    assert {way for way, size in moved if float(size) > 0} == {"up", "down"}


def test_a_port_that_is_taken_ends_a_trainer_before_it_joins(data: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = tmp_path / "job.toml"
        job.write_text(to_toml(tiny_job(data, steps=1, log={"metrics_port": port})))
        with warm("-m", "syncline.train", str(job), "--progress", "none") as process:
            _, errors = process.communicate(timeout=100)
    assert process.returncode == PortInUse.exit_code == 11
    said = errors.splitlines()[-1]
    assert said.startswith(f"error: Another process listens on 127.0.0.1 port {port}; ")
    assert said.endswith("--set log.metrics_port=PORT.")
