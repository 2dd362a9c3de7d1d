"""The benchmark of a whole round on a tiny model, and the networks that it can make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contest import PEER_OFF_MAX
from network import Links, Profile
from peers.environments import PINS, default_folder, is_there
from syncline_testing.processes import alive, environment

ROOT = Path(__file__).parents[2]
ROUND = ROOT / "benchmarks" / "round.py"
PEERS_FOLDER = default_folder()
CAN_MAKE_NETWORKS = os.geteuid() == 0 and Path("/dev/net/tun").exists()

# Answers what it is sent, once.
ECHO = """
import socket
door = socket.create_server(("0.0.0.0", 5000))
print("open", flush=True)
there = door.accept()[0]
there.sendall(there.recv(1))
"""
ASK = """
import socket, sys, time
there = socket.create_connection((sys.argv[1], 5000), 20)
began = time.monotonic()
there.sendall(b"x")
assert there.recv(1) == b"x"
print(time.monotonic() - began)
"""


def a_round(tmp_path: Path, peer: str) -> dict[str, Any]:
    """What a round of a tiny model beside a peer comes to."""
    command = [sys.executable, str(ROUND), "--peers", peer, "--parameters", "20000"]
    done = subprocess.run(
        [*command, "--lives", "2", "--repeats", "1", "--peers-folder", str(PEERS_FOLDER)],
        env=environment(TMPDIR=str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert alive(tmp_path) == {}, "nothing of it is left"
    assert list(tmp_path.glob("syncline-round-*")) == []
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_round_of_a_tiny_model_is_timed_beside_gloo(tmp_path: Path) -> None:
    told = a_round(tmp_path, "gloo")
    assert told["round_s"] > 0 and told["round_durable_s"] > 0 and told["disk_s"] > 0
    assert told["disk_bytes"] > 2 * 4 * told["parameters"], "parameters and momentum, in fp32"
    assert told["over_gloo"] > 0 and (told["lives"], told["repeats"]) == (2, 1)
    assert told["over_torchft_diloco"] is None and told["missing"] == {}
    assert told["off"]["gloo"] < 1e-5, "fp32, and nothing but the average"
    assert 0 < told["off"]["syncline"] < 0.1, "bf16 is not exact, and was what travelled"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("peer", PINS)
def test_a_peer_that_has_an_environment_averages_as_it_is_driven(tmp_path: Path, peer: str) -> None:
    if not is_there(peer, PEERS_FOLDER):
        pytest.skip(f"{peer} has no environment here; benchmarks/round.py --peers {peer} makes it")
    told = a_round(tmp_path, peer)
    assert told["missing"] == {} and told["seconds"][peer] > 0
    assert told["off"][peer] < PEER_OFF_MAX[peer]


@pytest.mark.skipif(not CAN_MAKE_NETWORKS, reason="network namespaces need root and /dev/net/tun")
@pytest.mark.parametrize("round_trip_s", [0.0, 0.04])
def test_hosts_reach_one_another_no_sooner_than_told_and_nothing_is_left(
    round_trip_s: float,
) -> None:
    with Links(Profile(mbit=100, round_trip_s=round_trip_s), hosts=2) as links:
        echo = [*links.on(1), sys.executable, "-c", ECHO]
        with subprocess.Popen(echo, stdout=subprocess.PIPE) as answering:
            assert answering.stdout is not None and answering.stdout.readline()
            ask = [*links.on(0), sys.executable, "-c", ASK, links.address(1)]
            took = subprocess.run(ask, capture_output=True, text=True, check=True)
        assert float(took.stdout) >= round_trip_s
        shown = subprocess.run(
            ["tc", *("-n", links.on(0)[3]), "qdisc", "show", "dev", links.interface(0)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "tbf" in shown.stdout and "rate 100Mbit" in shown.stdout
        names = {links.on(host)[3] for host in range(2)}
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert not names & {line.split()[0] for line in left.stdout.splitlines()}
