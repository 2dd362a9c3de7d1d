"""A replica in a process of its own, for a test to kill at a chosen instant.

``python -m syncline_testing.victim JOB`` trains until the run is done or it is killed. If the job
names a ``note``, the second push of the wide fragment stops half-way for good, and the note says
so: then the instant is exact, however long the test takes to look.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from syncline import payload
from syncline_proto.codec import codec_of, crc32c
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.replicas import TinyModel, Trial
from syncline_testing.warm import Program, warm

NAME = "victim"
WIDE_FRAGMENT = 1
GRAINS = 4
GRAIN = codec_of(pb.CODEC_FP32).grain
HELD_S = 120.0
"""As long as any test."""


def wide_model(seed: int) -> TinyModel:
    """A TinyModel whose first block is large enough to travel in several chunks."""
    model = TinyModel(seed)
    model.blocks[0].register_parameter("wide", nn.Parameter(torch.zeros(GRAINS, GRAIN)))
    return model


def hold_half(note: Path) -> None:
    """Cut pushes into the smallest chunks; of the second wide one only the first half goes out.

    Call it once the replica has joined: what it offers then is not counted.
    """
    wide = 0

    def chunks(data: memoryview, codec: pb.Codec.ValueType) -> Iterator[pb.Chunk]:
        nonlocal wide
        step = codec_of(codec).size(GRAIN)
        pieces = [bytes(data[at : at + step]) for at in range(0, len(data), step)]
        is_wide = len(pieces) > 1
        wide += is_wide
        half = len(pieces) // 2 if is_wide and wide == 2 else -1
        for number, piece in enumerate(pieces):
            if number == half:
                note.write_text("half of the chunks are out")
                threading.Event().wait(HELD_S)
            yield pb.Chunk(data=piece, crc32c=crc32c(piece))

    payload.chunks = chunks


@contextmanager
def victim(folder: Path, job: dict[str, Any]) -> Iterator[Program]:
    """Start the process (``job``: control, run, settings, perhaps note); it is gone at the end."""
    path = folder / "victim.json"
    path.write_text(json.dumps(job))
    with warm("-m", __name__, str(path), log=folder / "victim.log") as process:
        yield process


def main(path: Path) -> None:
    job = json.loads(path.read_text())
    trial = Trial(
        job["control"], job["run"], 9, settings=job["settings"], name=NAME, model=wide_model(9)
    )
    with trial.replica:
        if job.get("note"):
            hold_half(Path(job["note"]))
        while not trial.replica.done:
            trial.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
