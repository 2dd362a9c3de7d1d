"""What the bare disk takes for the bytes of one round: to hold against ``round_durable_s``.

Files of a round's sizes are written and synced beside the stores that hold that round, all at
once, as commits of different fragments are; nothing is merged, sealed or named. Reads of a store
only how large its files are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from syncline.disk import to_disk

PIECE_BYTES = 1 << 20


def round_sizes(folder: Path, run: str) -> list[int]:
    """The bytes of the file that each fragment's newest round wrote, in all stores below."""
    fragments = [path for path in folder.glob(f"store-*/runs/{run}/*") if path.is_dir()]
    return [max(path.glob("r*.safetensors")).stat().st_size for path in fragments]


def write_s(folder: Path, sizes: Sequence[int]) -> float:
    """Seconds until files of these sizes are on the disk; nothing is left of them."""
    folder.mkdir()
    paths = [folder / str(number) for number in range(len(sizes))]
    piece = os.urandom(PIECE_BYTES)  # no disk can make less of it
    try:
        with ThreadPoolExecutor(len(sizes)) as pool:
            began = time.monotonic()
            list(pool.map(_write, paths, sizes, [piece] * len(sizes)))
            to_disk(folder)
            return time.monotonic() - began
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
        folder.rmdir()


def _write(path: Path, size: int, piece: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        for at in range(0, size, len(piece)):
            file.write(piece[: size - at])
        os.fsync(file.fileno())
