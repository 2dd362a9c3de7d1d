"""How near push and pull come to the limit of what Python's gRPC moves.

A real sync service, fed by a real control plane, takes whole pushes (staged, checked, measured,
judged, folded, answered) and serves pulls; a bare gRPC server takes the same messages and throws
them away, and sends messages of the same sizes. Each is a process of its own on this machine, and
so is the client, which has encoded everything beforehand and decodes nothing. The two take turns;
a ratio is the median of those of neighbours, speeds are medians. A single ratio may be 0.6 as well
as 1.1, and a process may keep for its life the luck with memory that it began with, ours or the
bare one: whence so many repeats, in several lives of both. The last line is one line of JSON:

    {"push_ratio", "pull_ratio", "durability", "fp32": {...}, "bf16": {...}}

`push_ratio` and `pull_ratio` are the service's bytes per second over the bare server's, the smaller
of both codecs; under each codec they stand with the speeds they come from (bytes/s). Two replicas
push side by side, fragment by fragment. Rounds are closed by a third, whose pushes are not in these
figures, nor is the outer step, nor the writing of what was published. So few pushes in bf16 are
added up by the outer step, as it goes through them; in fp32 two are folded while the next come in,
but for the last ones. `merged` has all of that: the bytes of the three replicas' pushes over the
seconds from the first chunk until every fragment is published. The store is in memory (/dev/shm),
so that no disk is measured, and `durability` says what the run was set to.

    python benchmarks/wire.py [--lives 5] [--repeats 8] [--fragments 8] [--elements 8388608]
                              [--streams 4]

As it is both must be 0.7 at least; a sentence and exit code 1 say so if they are not. With other
sizes nothing is asked of the figures, and a sentence says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from asked import at_least
from disk import wait_until_written
from interrupted import interruptible
from services import Cluster
from wire_client import DURABILITY, OPTIONS, Client, folder, layout_of, messages_of, run_of

RATIO_MIN = 0.7
CODECS = ("fp32", "bf16")
REPLICAS = ("measured", "beside", "other")
"""The first two push in the figures; the last one closes the rounds."""

Speeds = dict[str, list[float]]


@interruptible()
def main() -> None:
    parser = argparse.ArgumentParser(
        description="Push and pull through the sync service, over a bare gRPC stream.",
        epilog="example: python benchmarks/wire.py --repeats 5",
    )
    parser.add_argument(
        "--lives", type=at_least(1), default=5, help="of the servers, one after the other"
    )
    parser.add_argument(
        "--repeats",
        type=at_least(1),
        default=8,
        help="of each in each life, after one to warm up",
    )
    parser.add_argument("--fragments", type=at_least(1), default=8)
    parser.add_argument("--elements", type=at_least(1), default=1 << 23, help="of a fragment")
    parser.add_argument(
        "--streams", type=at_least(1), default=4, help="calls at a time, as a replica has"
    )
    given = parser.parse_args()
    speeds: dict[str, Speeds] = {codec: {} for codec in CODECS}
    for life in range(1, given.lives + 1):
        with services() as (store, cluster, bare):
            print(f"Life {life} of {given.lives}:", file=sys.stderr)
            for codec, its in speeds.items():
                for name, more in measured(codec, store, cluster, bare, given).items():
                    its.setdefault(name, []).extend(more)
    found = {codec: summary(its) for codec, its in speeds.items()}
    result: dict[str, Any] = {
        name: min(found[codec][name] for codec in CODECS) for name in ("push_ratio", "pull_ratio")
    }
    print(json.dumps({**result, "durability": DURABILITY, **found}))
    usual = {name: parser.get_default(name) for name in ("fragments", "elements", "streams")}
    if any(getattr(given, name) != size for name, size in usual.items()):
        sizes = " ".join(f"--{name} {size}" for name, size in usual.items())
        print(f"Nothing is asked of these ratios: they count with {sizes}.", file=sys.stderr)
    elif missed := shortfall(result):
        sys.exit(missed)


def shortfall(result: dict[str, Any]) -> str | None:
    """What the service owes: one sentence; None if it holds what is asked of it."""
    for name in ("push_ratio", "pull_ratio"):
        if not result[name] >= RATIO_MIN:
            return f"{name} is {result[name]:.2f}, under {RATIO_MIN}."
    return None


@contextmanager
def services() -> Iterator[tuple[Path, Cluster, grpc.Channel]]:
    """The store, the real ones, and a channel to the bare server, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("wire_bare.py"))]
    with (
        folder() as store,
        Cluster(store) as cluster,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process,  # Ctrl+C is for us alone
    ):
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port:
                sys.exit("The bare server has ended before it listened; see what it said above.")
            address = f"127.0.0.1:{port}"
            with grpc.insecure_channel(address, options=OPTIONS) as channel:
                yield store, cluster, channel
        finally:
            process.kill()


def measured(
    codec: str, store: Path, cluster: Cluster, bare: grpc.Channel, given: argparse.Namespace
) -> Speeds:
    """Speeds with one codec both ways, in a run of its own."""
    speeds: Speeds = {}
    cluster.post("/runs", run_of(codec, len(REPLICAS), codec))
    for replica in REPLICAS:
        cluster.post(f"/runs/{codec}/replicas", {"replica": replica})
    layout = layout_of(given.fragments, given.elements)
    with (
        ThreadPoolExecutor(given.streams) as pool,
        ExitStack() as stack,
    ):
        clients = [
            stack.enter_context(Client(cluster.sync_address, codec, replica, layout))
            for replica in REPLICAS
        ]
        written = partial(wait_until_written, store, f"**/runs/{codec}/*/head.json")
        for repeat, seen in enumerate(rounds(codec, given, clients, bare, pool, written)):
            print(f"{codec} {repeat or 'warm-up'}: {told(seen)}", file=sys.stderr)
            if repeat:
                for name, speed in seen.items():
                    speeds.setdefault(name, []).append(speed)
    return speeds


def rounds(
    codec: str,
    given: argparse.Namespace,
    clients: Sequence[Client],
    bare: grpc.Channel,
    pool: ThreadPoolExecutor,
    written: Callable[[int], None],
) -> Iterator[dict[str, float]]:
    """Whole rounds, in each of which service and bare server take turns: bytes/s of each."""
    *measured, other = clients
    client = measured[0]
    fragments = range(given.fragments)

    def each(work: Callable[[int], Any]) -> list[Any]:
        return list(pool.map(work, fragments))

    def beside(work: Callable[[Client, int], Any]) -> list[Any]:
        """All fragments in order, of each the pushes of all that are measured."""
        numbers = [f for f in fragments for _ in measured]
        return list(pool.map(work, measured * given.fragments, numbers))

    bare_push, bare_pull = bare.stream_unary("/Bare/Push"), bare.unary_stream("/Bare/Pull")
    messages = messages_of(given.elements, codec)
    size = sum(map(len, messages)) * given.fragments
    each(partial(client.offer, messages=messages_of(given.elements, "fp32")))
    each(lambda f: client.wait(f, 0))
    for base in range(given.repeats + 1):
        seen: dict[str, float] = {}

        @contextmanager
        def timed(name: str, bytes_: int, seen: dict[str, float] = seen) -> Iterator[None]:
            began = time.monotonic()
            yield
            seen[name] = bytes_ / (time.monotonic() - began)

        with timed("bare_push", size * len(measured)):
            beside(lambda _, f: bare_push(iter(messages)))
        with timed("merged", size * len(clients)):
            with timed("push", size * len(measured)):
                beside(lambda one, f, base=base: one.push(f, messages, codec, base))
            each(lambda f, base=base: other.push(f, messages, codec, base))
            each(lambda f, base=base: client.wait(f, base + 1))
        written(base + 1)
        sizes = " ".join(map(str, client.pull(0, base + 1))).encode()
        with timed("bare_pull", size):
            each(lambda f, sizes=sizes: drained(bare_pull(sizes)))
        with timed("pull", size):
            each(lambda f, base=base: client.pull(f, base + 1))
        yield seen


def drained(messages: Iterator[bytes]) -> None:
    for _ in messages:
        pass


def summary(speeds: Speeds) -> dict[str, float]:
    """Medians: of the ratios of neighbours, and of the speeds."""
    found: dict[str, float] = {}
    for name in ("push", "pull"):
        pairs = zip(speeds[name], speeds[f"bare_{name}"], strict=True)
        found[f"{name}_ratio"] = statistics.median(ours / bare for ours, bare in pairs)
        found[name] = statistics.median(speeds[name])
        found[f"bare_{name}"] = statistics.median(speeds[f"bare_{name}"])
    found["merged"] = statistics.median(speeds["merged"])
    return found


def told(speeds: dict[str, float]) -> str:
    return ", ".join(f"{name} {speed / 1e6:.0f} MB/s" for name, speed in speeds.items())


if __name__ == "__main__":
    main()
