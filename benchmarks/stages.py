"""What each stage of a round takes by itself: the functions that a round is made of, one at a time.

One fragment of so many parameters in this one process and thread, no line and no other process: so
what a round of ``round.py`` takes beyond their sum is gRPC, and waiting. The last line is one line
of JSON:

    {"seconds": {...}, "cpu_seconds": {...}, "gb_per_s": {...}, "parameters", "up", "down"}

each by stage, medians; `gb_per_s` is the parameters in fp32 over the seconds.

    replica   encode       anchor - parameters, as a payload
              seal         its chunks as messages, with their checksums
    service   stage        the chunks read, checked, kept and measured
              fold_first   into the round's sum, which the first push begins
              fold         a further push
              fold_both    the first two at once, in place of these
              outer        the outer step, with the next difference where down is int8
              few          in place of fold_both and outer, where two in int8 or bf16 are all of a
                           round: their sum is never in memory
              commit       the revision's file, synced, and its head
              publish      what is sent of it (nothing, where it follows by difference)
              send         its chunks as messages, with their checksums
    replica   take         these read, checked and kept, or decoded
              write        into anchor and model

    python benchmarks/stages.py [--parameters N] [--up CODEC] [--down CODEC] [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from asked import at_least
from interrupted import interruptible
from syncline.carrier import Direct, land
from syncline.change import Change
from syncline.gathering import Part
from syncline.pulled import Incoming
from syncline.scratch import Scratch
from syncline_proto.codec import (
    CODEC_BY_NAME,
    Bytes,
    Float32,
    Follower,
    UInt16,
    chunk_elements,
    codec_of,
    crc32c,
    publish,
)
from syncline_proto.merging import OuterSettings
from syncline_proto.parts import Chunk, read_chunk, write_chunk
from syncline_proto.settings import CodecName, DownCodecName
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import few, merge
from syncline_sync.core.record import Saved
from syncline_sync.entries import Place
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.shard import Shard
from syncline_sync.slabs import Slabs
from syncline_sync.stored import sent_of

PUSHED_BYTES, PULLED_BYTES = 2 << 20, 1 << 20
"""Of a chunk, as a replica sends them and as a service does."""


class Stages:
    """A fragment, at a replica and at the service, and a round of it."""

    def __init__(self, folder: Path, numel: int, up: str, down: str) -> None:
        rng = np.random.default_rng(0)
        self.numel, self.up, self.down = numel, CODEC_BY_NAME[up], CODEC_BY_NAME[down]
        self.whole = Extent.of(np.array([[0, numel]], np.int64))
        self.parameters = rng.standard_normal(numel, np.float32)
        self.momentum, self.sum = np.zeros((2, numel), np.float32)
        self.spare: Any = None
        self.by_difference = down == "int8"
        self.published = np.empty(numel, np.uint16)
        publish(self.published, self.parameters)
        self.beside = self.momentum.copy(), self.sum.copy(), self.published.copy()
        bits = self.by_difference or down == "bf16"
        self.anchor: Any = self.published.copy() if bits else self.parameters.copy()
        self.pulled: Float32 | UInt16 | Change = self.anchor
        """What comes next, or how to come there."""
        step = np.float32(1e-3) * rng.standard_normal(numel, np.float32)
        self.model = [torch.from_numpy(self.parameters - step)]
        self.carrier = Direct(Scratch())
        self.slabs = Slabs(1 << 30)
        self.store = FragmentStore(
            folder / "00000", Place(run="stages", fragment=0, layout="0" * 64, numel=numel)
        )
        self.payload = np.empty(codec_of(self.up).size(numel), np.uint8)
        self.revision = 0
        self.norm = 0.0
        """Of what was pushed."""
        self.times: dict[str, list[tuple[float, float]]] = {}
        """By stage: seconds, and those of all processors."""

    def round(self) -> None:
        self.revision += 1
        self.model[0] -= 1e-3  # as if it had trained on
        self._timed("encode", self._encode)
        pushed = self._sealed("seal", self.payload.data, self.up, PUSHED_BYTES)
        shard = self._timed("stage", lambda: self._stage(pushed))
        self.norm = math.sqrt(shard.square_sum)
        mine = [shard.payload()]
        self._timed("fold_first", lambda: merge.fold(self.sum, mine, 1.0, is_first=True))
        self._timed("fold", lambda: merge.fold(self.sum, mine, 1.0))
        both = [merge.Weighed(mine, 1.0, 1.0, self.norm)] * 2
        self._timed("fold_both", lambda: merge.begin(self.sum, both))
        difference = self._timed("outer", self._step)
        if (two := few.few_of(both)) is not None:
            self._timed("few", lambda: self._step_few(two))
        shard.free()
        self.parameters, self.sum = self.sum, self.parameters
        self._timed("commit", self._commit)
        sent = self._timed("publish", lambda: self._publish(difference))
        pulled = self._sealed("send", sent, self.down, PULLED_BYTES)
        self._timed("take", lambda: self._take(pulled))
        self._timed("write", self._write)

    def _encode(self) -> None:
        parts = [Part(self.model[0], self.anchor)]
        self.carrier.encode(parts, codec_of(self.up), self.payload)()

    def _stage(self, messages: Iterable[bytes]) -> Shard:
        shard = Shard(pb.PushHeader(codec=self.up), self.whole, self.slabs)
        shard.take(map(chunk_of, messages))
        return shard

    def _step(self) -> memoryview | None:
        arrays = self.parameters, self.momentum, self.sum
        if not self.by_difference:
            merge.outer_step(*arrays, 2.0, OuterSettings())
            return None
        return merge.step_and_advance(*arrays, 2.0, OuterSettings(), self.published)[1]

    def _step_few(self, two: few.Few) -> None:
        """In arrays of its own: the round goes on from what ``outer`` has left."""
        momentum, parameters, published = self.beside
        if self.by_difference:
            few.step_and_advance(two, parameters, momentum, 2.0, OuterSettings(), published)
        else:
            few.outer_step(two, self.parameters, momentum, parameters, 2.0, OuterSettings())

    def _commit(self) -> None:
        sent = self.published if self.by_difference else None
        saved = Saved(
            revision=self.revision, down="int8" if self.by_difference else codec_of(self.down).name
        )
        self.store.commit(saved, self.parameters, self.momentum, sent)

    def _publish(self, difference: memoryview | None) -> Bytes:
        if difference is not None:
            return difference
        sent, self.spare = sent_of(self.parameters, self.down, self.spare)
        return memoryview(sent.read(self.whole.spans()))

    def _take(self, messages: Iterable[bytes]) -> None:
        header, follower, change = pb.PullHeader(codec=self.down), None, None
        if self.by_difference:
            header.difference_from, where = "the anchor", self.whole.spans()
            follower, change = Follower(self.anchor, where), Change(self.anchor, where)
        incoming = Incoming(header, self.numel, self.carrier.scratch, follower, change)
        for message in messages:
            incoming.take(chunk_of(message))
        self.pulled = incoming.values()

    def _write(self) -> None:
        if isinstance(self.pulled, Change):
            land(self.pulled, self.model)
            return
        self.carrier.put(self.model, self.pulled)
        self.carrier.scratch.give_back(self.anchor.view(np.uint8))
        self.anchor = self.pulled

    def _sealed(
        self, stage: str, data: Bytes, codec: pb.Codec.ValueType, size_max: int
    ) -> list[bytes]:
        """The messages, which are never all there at a time where they are sent: so timed."""
        self._timed(stage, lambda: deque(sealed(data, codec, size_max), maxlen=0))
        return list(sealed(data, codec, size_max))

    def _timed(self, stage: str, work: Callable[[], Any]) -> Any:
        began, used = time.perf_counter(), time.process_time()
        result = work()
        took = time.perf_counter() - began, time.process_time() - used
        self.times.setdefault(stage, []).append(took)
        return result


def chunk_of(message: bytes) -> Chunk:
    chunk = read_chunk(message)
    assert chunk is not None
    return chunk


def sealed(data: Bytes, codec: pb.Codec.ValueType, size_max: int) -> Iterator[bytes]:
    """A payload's chunks as messages."""
    view, size = memoryview(data), codec_of(codec).size(chunk_elements(codec, size_max))
    cuts = [view[at : at + size] for at in range(0, len(view), size)]
    return (write_chunk(Chunk(cut, crc32c(cut))) for cut in cuts)


def summary(times: dict[str, list[tuple[float, float]]], numel: int) -> dict[str, Any]:
    """Medians by stage; the first round, which finds new memory, does not count."""
    seconds = {stage: statistics.median(s for s, _ in its[1:]) for stage, its in times.items()}
    cpu = {stage: statistics.median(c for _, c in its[1:]) for stage, its in times.items()}
    speeds = {stage: 4e-9 * numel / max(s, 1e-9) for stage, s in seconds.items()}
    return {"seconds": seconds, "cpu_seconds": cpu, "gb_per_s": speeds}


@interruptible()
def main() -> None:
    given = options().parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="syncline-stages-") as folder:
        stages = Stages(Path(folder), given.parameters, given.up, given.down)
        for repeat in range(given.repeats + 1):
            stages.round()
            print(f"Round {repeat} of {given.repeats}.", file=sys.stderr)
    told = summary(stages.times, given.parameters)
    print(json.dumps(told | {name: getattr(given, name) for name in ("parameters", "up", "down")}))


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="What each stage of a round takes by itself.",
        epilog="example: python benchmarks/stages.py --up int8 --down int8",
    )
    parser.add_argument("--parameters", type=at_least(1), default=50_000_000)
    parser.add_argument("--up", choices=get_args(CodecName), default="bf16")
    parser.add_argument("--down", choices=get_args(DownCodecName), default="bf16")
    parser.add_argument("--repeats", type=at_least(1), default=5)
    return parser


if __name__ == "__main__":
    main()
