"""What the sync service's memory grows with: the model, and not the replicas that push it.

Whole rounds of 2 and of 8 replicas, in bf16 both ways: all of them begin to push all fragments at
once, and wait for room (`--staging-bytes`); each pulls every fragment as soon as it is merged, as a
real one does. Services are processes of their own, real ones: 2 and 8 take turns, with a new one
each time. The last line is one line of JSON:

    {"ratio_2", "ratio_8", "growth", "empty_bytes", "parameter_bytes", "staging_bytes",
     "durability"}

`ratio_N` is the most memory that the service ever had resident (VmHWM), less what it had at most
before there was a run, over the fp32 bytes of the parameters: the median of all repeats, since a
peak is not the same twice. `growth` is `ratio_8` over `ratio_2`.

    python benchmarks/memory.py [--repeats 3] [--fragments 8] [--elements 8388608] [--rounds 4]
                                [--staging-bytes BYTES]

`--staging-bytes` is the service's room for pushes, by default a 16th of the parameters.

On Linux. As it is a ratio must be 3.5 at most, and the growth 1.05; a sentence and exit code 1 say
so if one is not. With other sizes, or other room, nothing is asked of the figures: what a service
holds besides the parameters weighs more where fragments are small, and what has room may be held.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from asked import at_least
from interrupted import interruptible
from services import Cluster
from syncline_sync.settings import STAGING_MIN
from wire_client import DURABILITY, Client, folder, layout_of, messages_of, run_of

RATIO_MAX, GROWTH_MAX = 3.5, 1.05
COUNTS = (2, 8)
ELEMENTS = 1 << 23
RUN, CODEC = "memory", "bf16"

STAGING_SHARE = 16
"""The room for pushes is this part of the parameters; of a 7B model's 28 GB the default is about
as much, 2 GiB."""


@interruptible()
def main() -> None:
    parser = options()
    given = parser.parse_args()
    if given.elements < ELEMENTS:
        small = f"{given.elements} elements in a fragment are fewer than the usual {ELEMENTS}"
        print(f"{small}: the smaller the fragments, the larger the ratios.", file=sys.stderr)
    parameter_bytes = given.fragments * given.elements * 4
    staging_bytes = given.staging_bytes or max(parameter_bytes // STAGING_SHARE, STAGING_MIN)
    found: dict[int, list[tuple[int, int]]] = {count: [] for count in COUNTS}
    for _ in range(given.repeats):
        for count, its in found.items():
            its.append(peaks(count, staging_bytes, given))
    few, many = (
        median((peak - empty) / parameter_bytes for empty, peak in its) for its in found.values()
    )
    result: dict[str, Any] = {
        "ratio_2": few,
        "ratio_8": many,
        "growth": many / few,
        "empty_bytes": max(empty for its in found.values() for empty, _ in its),
        "parameter_bytes": parameter_bytes,
        "staging_bytes": staging_bytes,
        "durability": DURABILITY,
    }
    print(json.dumps(result))
    usual = all(
        getattr(given, name) == parser.get_default(name)
        for name in ("fragments", "elements", "rounds", "staging_bytes")
    )
    if not usual:
        sizes = " ".join(
            f"--{name} {parser.get_default(name)}" for name in ("fragments", "elements", "rounds")
        )
        print(
            f"Nothing is asked of these ratios: they count with {sizes}, and without "
            "--staging-bytes.",
            file=sys.stderr,
        )
    elif missed := shortfall(result):
        sys.exit(missed)


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(
        description="Peak memory of the sync service over that of its parameters.",
        epilog="example: python benchmarks/memory.py --elements 1048576",
    )
    parser.add_argument("--repeats", type=at_least(1), default=3, help="of each count, in turns")
    parser.add_argument("--fragments", type=at_least(1), default=8)
    parser.add_argument("--elements", type=at_least(1), default=ELEMENTS, help="of a fragment")
    parser.add_argument("--rounds", type=at_least(1), default=4)
    parser.add_argument(
        "--staging-bytes",
        type=at_least(STAGING_MIN),
        metavar="BYTES",
        help=f"room for pushes in flight; by default 1/{STAGING_SHARE} of the parameters",
    )
    return parser


def shortfall(result: dict[str, Any]) -> str | None:
    """What the service owes: one sentence; None if it holds what is asked of it."""
    limits = {"ratio_2": RATIO_MAX, "ratio_8": RATIO_MAX, "growth": GROWTH_MAX}
    for name, most in limits.items():
        if not result[name] <= most:
            return f"{name} is {result[name]:.3f}, over {most}."
    return None


def peaks(count: int, staging_bytes: int, given: argparse.Namespace) -> tuple[int, int]:
    """The most memory that a service ever had: before its run, and in rounds of ``count``."""
    with (
        folder() as store,
        Cluster(store, "--staging-bytes", str(staging_bytes)) as cluster,
    ):
        empty = peak_bytes(cluster.sync.pid)
        rounds(cluster, [f"r{i}" for i in range(count)], given)
        peak = peak_bytes(cluster.sync.pid)
    told = f"{count} replicas: {peak / 2**20:.0f} MiB at most, {empty / 2**20:.0f} without a run"
    print(told, file=sys.stderr)
    return empty, peak


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had resident."""
    told = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", told, flags=re.MULTILINE)
    if found is None:
        raise SystemExit("The kernel does not tell a process's peak of memory (VmHWM).")
    return int(found[1]) << 10


def rounds(cluster: Cluster, replicas: Sequence[str], given: argparse.Namespace) -> None:
    """Whole rounds of all replicas, each on a connection of its own: all calls of one at once."""
    cluster.post("/runs", run_of(RUN, len(replicas), CODEC))
    for replica in replicas:
        cluster.post(f"/runs/{RUN}/replicas", {"replica": replica})
    layout, fragments = layout_of(given.fragments, given.elements), range(given.fragments)
    messages = messages_of(given.elements, CODEC)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(cluster.sync_address, RUN, replica, layout))
            for replica in replicas
        ]
        all_at_once = 2 * len(clients) * given.fragments
        pool = stack.enter_context(ThreadPoolExecutor(all_at_once))
        offer = partial(clients[0].offer, messages=messages_of(given.elements, "fp32"))
        list(pool.map(offer, fragments))
        for base in range(given.rounds):
            list(pool.map(clients[0].wait, fragments, [base] * given.fragments))
            pushes = [
                pool.submit(client.push, fragment, messages, CODEC, base)
                for client in clients
                for fragment in fragments
            ]
            pulls = [
                pool.submit(client.pull, fragment, base + 1)
                for client in clients
                for fragment in fragments
            ]
            for done in (*pushes, *pulls):
                done.result()


if __name__ == "__main__":
    main()
