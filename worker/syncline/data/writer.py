"""Writing token shards: files of ids for one split, none over a bound.

A writer only appends, and it works inside a folder that nobody reads yet; whoever made the folder
gives it its name when all is done, or removes it. Checksums are kept while writing, so nothing is
read again.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from awscrt import checksums

from syncline.data.manifest import ShardInfo

SHARD_BYTES_MAX = 256 << 20


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest stored type that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


@dataclass(slots=True)
class _Shard:
    path: Path
    tokens: int = 0
    crc: int = 0


@dataclass(slots=True, kw_only=True)
class SplitWriter:
    """The shards of one split, and what the manifest will say of them.

    Invariants:
        - no shard holds more than ``shard_bytes_max`` bytes, and none is empty;
        - the tokens of the shards, in order, are those appended, in order.
    """

    folder: Path
    split: str
    vocab_size: int
    shard_bytes_max: int = SHARD_BYTES_MAX
    tokens: int = 0
    bytes: int = 0
    documents: int = 0
    _shards: list[_Shard] = field(default_factory=list)
    _file: BinaryIO | None = None

    @property
    def dtype(self) -> np.dtype:
        """The stored type."""
        return token_dtype(self.vocab_size)

    def append(self, ids: np.ndarray) -> None:
        """Add ids at the end, in a new shard where the last is full."""
        # A cast would wrap silently, and the model would meet ids it has no row for.
        assert not ids.size or int(ids.max()) < self.vocab_size
        shard_tokens_max = self.shard_bytes_max // self.dtype.itemsize
        start = 0
        while start < len(ids):
            if not self._shards or self._shards[-1].tokens == shard_tokens_max:
                self._begin_shard()
            shard = self._shards[-1]
            part = ids[start : start + shard_tokens_max - shard.tokens].astype(self.dtype)
            assert self._file is not None
            data = part.tobytes()
            self._file.write(data)
            shard.crc = checksums.crc32c(data, shard.crc)
            shard.tokens += len(part)
            self.tokens += len(part)
            start += len(part)

    def take_tail(self, count: int) -> np.ndarray:
        """Remove the last ``count`` ids, or all of the last shard if it has fewer; return them."""
        if not self._shards:
            return np.empty(0, dtype=self.dtype)
        self.close()
        shard = self._shards.pop()
        ids = np.fromfile(shard.path, dtype=self.dtype)
        shard.path.unlink()
        self.tokens -= len(ids)
        kept = max(0, len(ids) - count)
        self.append(ids[:kept])
        return ids[kept:]

    def finish(self) -> tuple[ShardInfo, ...]:
        """Bring everything to disk and say what there is."""
        self.close()
        return tuple(
            ShardInfo(file=shard.path.name, tokens=shard.tokens, crc32c=f"{shard.crc:08x}")
            for shard in self._shards
        )

    def close(self) -> None:
        """Sync and close the open shard, if there is one."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with file:
            file.flush()
            os.fsync(file.fileno())

    def _begin_shard(self) -> None:
        self.close()
        path = self.folder / f"{self.split}-{len(self._shards):05d}.bin"
        self._file = path.open("wb")
        self._shards.append(_Shard(path))
