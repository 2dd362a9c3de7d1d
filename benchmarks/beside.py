"""What pushes take that come at the same time, and what of that is the loop's at their chunks.

A chunk of a light codec is checked, copied and measured on the loop, where no other push is heard
meanwhile. Here 1, 2 and 4 replicas push one fragment each time, all at once, to one service of its
own; they take turns. What the loop takes for the chunks of one push is taken in this process, by
the service's own function, with nothing beside it. The last line is one line of JSON:

    {"seconds", "cpu_seconds", "loop_share", "beside", "take_seconds", "push_bytes", "codec"}

`seconds` and `cpu_seconds`, by how many push: until all are answered, the median; and those of the
service, the mean. `take_seconds` is what the chunks of one push take, and `loop_share` that of all
over the seconds. `beside` is what one push takes beside others, over what it takes alone: as many
times as there are pushes, where one thing or another has room for one alone.

    python benchmarks/beside.py [--codec fp32|bf16|int8] [--elements N] [--repeats 15]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any, Self

import numpy as np

from asked import at_least
from interrupted import interruptible
from services import Cluster
from syncline_proto.codec import CODEC_BY_NAME
from syncline_proto.parts import read_chunk
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.shard import Shard
from syncline_sync.slabs import Slabs
from wire_client import Client, folder, layout_of, messages_of, run_of

COUNTS = (1, 2, 4)


class Pushes:
    """So many replicas of one run, whose rounds all of them push at once."""

    def __init__(self, cluster: Cluster, count: int, elements: int, codec: str) -> None:
        self._cluster, self._count, self._codec = cluster, count, codec
        self._run, self._layout = f"beside-{count}", layout_of(1, elements)
        self._messages, self._first = messages_of(elements, codec), messages_of(elements, "fp32")
        self._base, self._stack = 0, ExitStack()
        self.times: list[tuple[float, float]] = []
        """Seconds, and those of the service's processors; of each round."""

    def __enter__(self) -> Self:
        self._cluster.post("/runs", run_of(self._run, self._count, self._codec))
        names = [f"r{i}" for i in range(self._count)]
        for name in names:
            self._cluster.post(f"/runs/{self._run}/replicas", {"replica": name})
        address = self._cluster.sync_address
        self._clients = [
            self._stack.enter_context(Client(address, self._run, name, self._layout))
            for name in names
        ]
        self._pool = self._stack.enter_context(ThreadPoolExecutor(self._count))
        self._clients[0].offer(0, self._first)
        self._clients[0].wait(0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def round(self) -> None:
        before, began = cpu_seconds(self._cluster.sync.pid), time.perf_counter()
        pushes = [
            self._pool.submit(client.push, 0, self._messages, self._codec, self._base)
            for client in self._clients
        ]
        for push in pushes:
            push.result()
        seconds = time.perf_counter() - began
        self.times.append((seconds, cpu_seconds(self._cluster.sync.pid) - before))
        self._base += 1
        self._clients[0].wait(0, self._base)
        self._clients[0].pull(0, self._base)  # and once it is written behind nothing is under way
        time.sleep(0.3)


def cpu_seconds(pid: int) -> float:
    """What a process has had of all processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def take_seconds(elements: int, codec: str, repeats: int) -> float:
    """Of the chunks of one push: what the service's loop does with them."""
    whole = Extent.of(np.array([[0, elements]], np.int64))
    messages, slabs, times = messages_of(elements, codec), Slabs(1 << 30), []
    for _ in range(repeats + 1):
        shard = Shard(pb.PushHeader(codec=CODEC_BY_NAME[codec]), whole, slabs)
        parts = [part for message in messages if (part := read_chunk(message)) is not None]
        began = time.perf_counter()
        for part in parts:
            shard.take([part])
        times.append(time.perf_counter() - began)
        shard.free()
    return median(times[1:])  # the first finds new memory


def summary(times: dict[int, list[tuple[float, float]]], take: float) -> dict[str, Any]:
    """Medians, by how many push; the first round of each does not count."""
    seconds = {count: median(s for s, _ in its[1:]) for count, its in times.items()}
    return {
        "seconds": seconds,
        "cpu_seconds": {count: fmean(c for _, c in its[1:]) for count, its in times.items()},
        "loop_share": {count: count * take / its for count, its in seconds.items()},
        "beside": {count: its / seconds[1] for count, its in seconds.items()},
        "take_seconds": take,
    }


@interruptible()
def main(words: Sequence[str] | None = None) -> None:
    given = options().parse_args(words)
    with folder() as store, Cluster(store) as cluster, ExitStack() as stack:
        pushes = [
            stack.enter_context(Pushes(cluster, count, given.elements, given.codec))
            for count in COUNTS
        ]
        for _ in range(given.repeats + 1):
            for one in pushes:
                one.round()
        times = {count: one.times for count, one in zip(COUNTS, pushes, strict=True)}
    told = summary(times, take_seconds(given.elements, given.codec, given.repeats))
    push_bytes = sum(map(len, messages_of(given.elements, given.codec)))
    print(json.dumps(told | {"push_bytes": push_bytes, "codec": given.codec}))


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="What pushes take that come at the same time.",
        epilog="example: python benchmarks/beside.py --codec fp32",
    )
    parser.add_argument("--codec", choices=("fp32", "bf16", "int8"), default="bf16")
    parser.add_argument("--elements", type=at_least(1), default=1 << 24, help="of a push")
    parser.add_argument("--repeats", type=at_least(1), default=15)
    return parser


if __name__ == "__main__":
    main()
