"""How much of a training's time goes by in waiting for synchronisation, and what hides it.

Two replicas of a run, in network namespaces of their own behind a slow link, train the same model
in four ways, one after the other:

    blocking    after its push a replica waits until everything is merged
    layerwise   the default: each fragment is waited for where the forward pass needs it
    overlap     ``overlap_steps``: training goes on while the round is under way
    streaming   each fragment in its turn (``fragment_groups``), with overlap

The last line is one line of JSON:

    {"blocking", "layerwise", "overlap", "streaming", "unpaced": {...}, "compute_share", "network",
     "parameters", "codec", "sync_every", "step_s", "interval_bytes"}

Each is the share of wall-clock in which a replica waits, the mean of both. Replicas are paced: a
step takes ``step_s``, waits aside, and what its arithmetic leaves of that it sleeps, so that two
replicas and the services of one machine do not take each other's processors. ``compute_share`` is
what of the processors the replicas use then, the largest of the four. ``unpaced`` has the shares
of replicas that train as fast as they can. ``interval_bytes`` is what a replica pushes in one
``sync_every``.

    python benchmarks/exposed.py [--network 1gbit|100mbit|loopback] [--parameters N] [--codec C]

As it is overlap and streaming must be 0.05 at most; a sentence and exit code 1 say so if they are
not. Networks other than loopback need root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import systems
from asked import at_least
from course import CODECS
from network import NETWORKS, NetworkUnavailable, network
from syncline.launch.ports import free_ports
from syncline.launch.processes import Crew, Process, describe_exit
from syncline_proto.settings import DownCodecName

SHARE_MAX = 0.05
HIDDEN = ("overlap", "streaming")
PARAMETERS, EVERY, STEP_S = 4_000_000, 32, 0.1
WAYS: dict[str, dict[str, Any]] = {
    "blocking": {},
    "layerwise": {},
    "overlap": {"overlap_steps": 24},
    "streaming": {"overlap_steps": 12, "fragment_groups": 100},
}
REPLICAS, WARM_UP, ROUNDS = 2, 2, 5
LIMIT_S, LOOK_S = 300.0, 0.2
LEASE_S = 60.0
"""A machine so busy that heartbeats are late shows in the figures; nobody need be lost for it."""


class Failed(Exception):
    """A replica did not come to its end; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What both replicas of a run have seen, between the same steps."""

    share: float
    """Of wall-clock, in which a replica waited; the mean of both."""
    compute_share: float
    """Of this machine's processors, that both used."""
    interval_bytes: float


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = options().parse_args()
    try:
        result = measured(given)
    except (NetworkUnavailable, Failed) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Interrupted; nothing of it is left.")
    print(json.dumps(result))
    usual = (given.parameters, given.codec) == (PARAMETERS, "int8")
    over = [f"{name} is {result[name]:.3f}" for name in HIDDEN if result[name] > SHARE_MAX]
    if usual and over:
        sys.exit(f"Training waits too long: {', '.join(over)}, over {SHARE_MAX}.")


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(
        description="The share of a training's time that goes by in waiting for synchronisation.",
        epilog="example: python benchmarks/exposed.py --network 100mbit",
    )
    parser.add_argument("--network", choices=NETWORKS, default="1gbit")
    parser.add_argument("--parameters", type=at_least(1000), default=PARAMETERS)
    parser.add_argument("--codec", choices=CODECS, default="int8")
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
        seen = {
            (way, step_s): trained(scene, crew, control, way, settings | its, step_s)
            for step_s in (STEP_S, 0.0)
            for way, its in WAYS.items()
        }
    return {
        **{way: seen[way, STEP_S].share for way in WAYS},
        "unpaced": {way: seen[way, 0.0].share for way in WAYS},
        "compute_share": max(seen[way, STEP_S].compute_share for way in WAYS),
        "network": given.network,
        "parameters": given.parameters,
        "codec": given.codec,
        "sync_every": EVERY,
        "step_s": STEP_S,
        "interval_bytes": seen["blocking", STEP_S].interval_bytes,
    }


def trained(
    scene: systems.Scene,
    crew: Crew,
    control: int,
    way: str,
    settings: dict[str, Any],
    step_s: float,
) -> Seen:
    """Let both replicas train in this way, to their end."""
    name = f"{way}-{'paced' if step_s else 'unpaced'}"
    told = scene.folder / name
    place = {
        "control": scene.at(scene.server, control),
        "run": name,
        "settings": json.dumps(settings),
        "step_s": str(step_s),
        "warm_up": str(WARM_UP),
        "rounds": str(ROUNDS),
        "blocking": "yes" if way == "blocking" else "",
        "told": str(told),
    }
    processes = [crew.start(command) for command in systems.paced_replicas(scene, name, place)]
    end = time.monotonic() + LIMIT_S
    while any(process.exit_code is None for process in processes):
        check_well(processes, late=time.monotonic() > end)
        time.sleep(LOOK_S)
    check_well(processes)
    seen = seen_by([json.loads(Path(f"{told}-{one}").read_text()) for one in range(REPLICAS)])
    print(f"{name}: {seen.share:.1%} of the time waited", file=sys.stderr, flush=True)
    return seen


def check_well(processes: list[Process], *, late: bool = False) -> None:
    """
    Raises:
        Failed: one has ended badly, or it takes too long.
    """
    for process in processes:
        if process.exit_code not in (None, 0):
            words = process.last_words(1) or ["its log is empty"]
            ended = describe_exit(process.exit_code)
            raise Failed(f"{process.name} ended with {ended}: {words[0].strip()}")
    if late:
        raise Failed(f"The replicas did not come to their end within {LIMIT_S:g} s.")


def seen_by(replicas: list[dict[str, float]]) -> Seen:
    """What both replicas have told, as one."""
    return Seen(
        share=mean(one["exposed_s"] / one["seconds"] for one in replicas),
        compute_share=sum(one["cpu_s"] / one["seconds"] for one in replicas)
        / (os.cpu_count() or 1),
        interval_bytes=mean(one["bytes_up"] / ROUNDS for one in replicas),
    )


if __name__ == "__main__":
    main()
