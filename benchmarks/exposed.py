"""How much of a training's time synchronisation costs, in waiting and in work, and what hides it.

Two replicas of a run, in network namespaces of their own behind a slow link, train the same model
in four ways, one after the other:

    blocking    after its push a replica waits until everything is merged
    layerwise   the default: each fragment is waited for where the forward pass needs it
    overlap     ``overlap_steps``: training goes on while the round is under way
    streaming   each fragment in its turn (``fragment_groups``), with overlap

The last line is one line of JSON:

    {"blocking", "layerwise", "overlap", "streaming", "waits": {...}, "hooks": {...},
     "unpaced": {...}, "compute_share", "network", "parameters", "codec", "sync_every", "step_s",
     "interval_bytes", "link_share", "device"}

Each of the four is the share of wall-clock in which a replica's training thread waits for rounds or
works for them in Syncline's hooks (it subtracts, encodes, writes), the mean of both; ``waits`` and
``hooks`` are its two parts. Replicas are paced: a step takes ``step_s``, waits and hooks aside, and
what its arithmetic leaves of that it sleeps, so that two replicas and the services of one machine
do not take each other's processors. ``compute_share`` is what of the processors all of them use
then, services as well, the largest of the four. ``unpaced`` has the shares of replicas that train
as fast as they can. ``interval_bytes`` is what a replica
pushes in one ``sync_every``. ``link_share`` is what the pushes of all, or their pulls if these are
more, take of what the service's link carries in one direction in so many steps; 0 on loopback.

    python benchmarks/exposed.py [--network 1gbit|100mbit|loopback] [--parameters N] [--codec C]
        [--device cpu|cuda]

``compute_share`` must be 0.6 at most, or the shares are no network's; and where the bytes fit the
link (``link_share`` 1 or less) overlap and streaming must be 0.05 at most. A sentence and exit code
1 say so if they are not. Needs Linux, and root for networks other than loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import systems
from asked import at_least
from contest import CODECS
from network import NETWORKS, PROFILES, network
from paced import processors, tell, wait_until
from syncline.launch.ports import free_ports
from syncline.launch.processes import Crew, Process
from syncline_proto.settings import DownCodecName

SHARE_MAX = 0.05
COMPUTE_MAX = 0.6
HIDDEN = ("overlap", "streaming")
PARAMETERS, EVERY, STEP_S = 4_000_000, 32, 0.1
WAYS: dict[str, dict[str, Any]] = {
    "blocking": {},
    "layerwise": {},
    "overlap": {"overlap_steps": 24},
    "streaming": {"overlap_steps": 12, "fragment_groups": 100},
}
REPLICAS, WARM_UP, ROUNDS = 2, 2, 5
LIMIT_S = 300.0
LEASE_S = 60.0
"""A machine so busy that heartbeats are late shows in the figures; nobody need be lost for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What both replicas of a run have seen, between the same steps."""

    waits: float
    """Share of wall-clock in which a replica waited; the mean of both."""
    hooks: float
    """That in which it worked in Syncline's hooks."""
    compute_share: float
    """Of this machine's processors, that all used: replicas, services and this program."""
    interval_bytes: float
    """That a replica pushes in one interval; the mean of both."""
    interval_bytes_down: float

    @property
    def share(self) -> float:
        """What synchronisation costs of wall-clock."""
        return self.waits + self.hooks


def main() -> None:
    given = options().parse_args()
    tell(lambda: measured(given), shortfall)


def shortfall(result: dict[str, Any]) -> str | None:
    """Why the figures count for nothing, or are worse than is asked: one sentence, or None."""
    if not result["compute_share"] <= COMPUTE_MAX:
        used = f"compute_share is {result['compute_share']:.3f}, over {COMPUTE_MAX}"
        return f"{used}: replicas and services take each other's processors, and wait for these."
    fits = result["link_share"] <= 1
    over = [f"{name} is {result[name]:.3f}" for name in HIDDEN if not result[name] <= SHARE_MAX]
    if fits and over:
        return f"Synchronisation costs training too much: {', '.join(over)}, over {SHARE_MAX}."
    return None


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(
        description="The share of a training's time that synchronisation costs, waits and work.",
        epilog="example: python benchmarks/exposed.py --network 100mbit",
    )
    parser.add_argument("--network", choices=NETWORKS, default="1gbit")
    parser.add_argument("--parameters", type=at_least(1000), default=PARAMETERS)
    parser.add_argument("--codec", choices=CODECS, default="int8")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="who trains")
    return parser


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Take all figures.

    Raises:
        NetworkUnavailable: the network could not be made.
        Failed: a replica failed.
    """
    down = given.codec if given.codec in get_args(DownCodecName) else "bf16"
    settings = {
        "strategy": "diloco",
        "sync_every": EVERY,
        "min_replicas": REPLICAS,
        "codec": {"up": given.codec, "down": down},
        "timeouts": {"profile": "wan" if given.network == "100mbit" else "lan", "lease": LEASE_S},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="syncline-exposed-")))
        scene = systems.Scene(
            network=stack.enter_context(network(given.network, REPLICAS + 1)),
            participants=REPLICAS,
            parameters=given.parameters,
            folder=folder,
            gate=folder / "no-gate",
        )
        crew = stack.enter_context(Crew())
        (control,) = free_ports(1)
        for command in systems.syncline_services(scene, control, shards=1):
            crew.start(command)
        runs = [
            {
                "name": name_of(way, step_s),
                "settings": settings | its,
                "step_s": step_s,
                "blocking": way == "blocking",
            }
            for step_s in (STEP_S, 0.0)
            for way, its in WAYS.items()
        ]
        place = {
            "control": scene.at(scene.server, control),
            "runs": json.dumps(runs),
            "warm_up": str(WARM_UP),
            "rounds": str(ROUNDS),
            "told": str(folder),
            "launcher": str(os.getpid()),
            "device": given.device,
        }
        replicas = systems.paced_replicas(scene, "replica", place)
        processes = [crew.start(command) for command in replicas]
        seen = {run["name"]: seen_in(run["name"], folder, processes) for run in runs}
        have_ended = lambda: all(one.exit_code is not None for one in processes)  # noqa: E731
        wait_until(have_ended, LIMIT_S, "the replicas had ended", processes)
    paced = {way: seen[name_of(way, STEP_S)] for way in WAYS}
    return {
        **{way: one.share for way, one in paced.items()},
        "waits": {way: one.waits for way, one in paced.items()},
        "hooks": {way: one.hooks for way, one in paced.items()},
        "unpaced": {way: seen[name_of(way, 0.0)].share for way in WAYS},
        "compute_share": max(one.compute_share for one in paced.values()),
        "network": given.network,
        "parameters": given.parameters,
        "codec": given.codec,
        "sync_every": EVERY,
        "step_s": STEP_S,
        "interval_bytes": paced["blocking"].interval_bytes,
        "link_share": link_share(given.network, paced["blocking"]),
        "device": given.device,
    }


def link_share(name: str, seen: Seen) -> float:
    """What all replicas take of a direction of the service's link, the fuller one, by the steps."""
    if name not in PROFILES:
        return 0.0
    bits = 8 * REPLICAS * max(seen.interval_bytes, seen.interval_bytes_down)
    return bits / (PROFILES[name].mbit * 1e6 * EVERY * STEP_S)


def name_of(way: str, step_s: float) -> str:
    """What the run is called in which replicas train so, at this pace."""
    return f"{way}-{'paced' if step_s else 'unpaced'}"


def seen_in(run: str, folder: Path, processes: list[Process]) -> Seen:
    """Wait until both replicas have told of a run."""
    told = [folder / f"{run}-{one}" for one in range(REPLICAS)]
    wait_until(lambda: all(path.exists() for path in told), LIMIT_S, f"{run} was over", processes)
    seen = seen_by([json.loads(path.read_text()) for path in told])
    parts = f"{seen.waits:.1%} of the time waited, {seen.hooks:.1%} in hooks"
    print(f"{run}: {parts}", file=sys.stderr, flush=True)
    return seen


def seen_by(replicas: list[dict[str, float]]) -> Seen:
    """What both replicas have told, as one."""
    return Seen(
        waits=mean(one["exposed_s"] / one["seconds"] for one in replicas),
        hooks=mean(one["hook_s"] / one["seconds"] for one in replicas),
        compute_share=mean(one["cpu_s"] / one["seconds"] for one in replicas) / processors(),
        interval_bytes=mean(one["bytes_up"] / ROUNDS for one in replicas),
        interval_bytes_down=mean(one["bytes_down"] / ROUNDS for one in replicas),
    )


if __name__ == "__main__":
    main()
