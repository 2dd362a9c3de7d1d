"""Reading token shards: a prepared folder's split, mapped into memory, cut into sequences.

Sequence ``i`` of length ``L`` is the tokens [i L, i L + L]: L + 1 of them, so that inputs and
targets can be cut from one piece; neighbours share that one token and nothing else. Sequences
cross documents and shard files, so no token is padding. Opening checks names and sizes; checksums
are ``verify``'s, since they cost a pass over all bytes. Nothing here writes.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from awscrt import checksums

from syncline.data.errors import DataError
from syncline.data.manifest import Manifest, ShardInfo, read_manifest

READ_BYTES = 4 << 20


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """A mean loss in nats per token, as bits per byte of source text.

    bits/byte = loss / ln 2 * tokens / bytes

    It does not depend on the tokenizer, so models with different ones can be compared.
    """
    return loss / math.log(2.0) / bytes_per_token


class TokenShards:
    """One split of a prepared folder.

    Invariants:
        - the same folder gives the same sequences to every process;
        - two sequences of one length share at most one token.
    """

    def __init__(self, folder: Path, split: str, manifest: Manifest) -> None:
        """Use ``open``."""
        info = manifest.splits[split]
        dtype = stored_dtype(manifest)
        self.folder = folder
        self.split = split
        self.manifest = manifest
        self._maps = [_mapped(folder, shard, dtype) for shard in info.shards]
        self._ends = np.cumsum([shard.tokens for shard in info.shards], dtype=np.int64)
        self._dtype = dtype

    @classmethod
    def open(cls, folder: str | Path, split: str = "train") -> "TokenShards":
        """Map a split of a prepared folder.

        Raises:
            DataError: not a prepared folder, no such split, or a shard is missing or cut off.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if split not in manifest.splits:
            names = ", ".join(sorted(manifest.splits))
            raise DataError(f"{folder} has no split {split!r}; it has {names}.")
        return cls(folder, split, manifest)

    def __reduce__(self) -> tuple[Callable[..., "TokenShards"], tuple[Path, str]]:
        # A pickled map would carry all its bytes; a data loader's worker maps the files itself.
        return TokenShards.open, (self.folder, self.split)

    @property
    def tokens(self) -> int:
        """How many tokens the split holds, end-of-document tokens included."""
        return self.manifest.splits[self.split].tokens

    @property
    def bytes_per_token(self) -> float:
        """Bytes of source text to one token, as ``bits_per_byte`` wants it."""
        info = self.manifest.splits[self.split]
        if not info.tokens:
            raise DataError(f"the split {self.split!r} of {self.folder} is empty.")
        return info.bytes / info.tokens

    def num_sequences(self, length: int) -> int:
        """How many sequences of this length there are; a shorter rest is left over."""
        assert length > 0
        return max(0, self.tokens - 1) // length

    def sequence(self, index: int, length: int) -> np.ndarray:
        """The ``length + 1`` tokens of sequence ``index``, copied, in the stored dtype.

        Raises:
            IndexError: there is no such sequence.
        """
        if not 0 <= index < self.num_sequences(length):
            raise IndexError(f"sequence {index} of {self.num_sequences(length)}")
        start = index * length
        out = np.empty(length + 1, dtype=self._dtype)
        filled = 0
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while filled < len(out):
            offset = start + filled - (int(self._ends[shard]) - len(self._maps[shard]))
            part = self._maps[shard][offset : offset + len(out) - filled]
            out[filled : filled + len(part)] = part
            filled += len(part)
            shard += 1
        return out


def stored_dtype(manifest: Manifest) -> np.dtype:
    """The manifest's dtype as it lies on disk: little-endian."""
    return np.dtype(manifest.dtype).newbyteorder("<")


def verify(folder: Path, manifest: Manifest, advance: Callable[[int], None]) -> None:
    """Read every shard and compare its checksum; tell ``advance`` of each stretch of bytes.

    Raises:
        DataError: a shard is missing, cut off or changed; it is named.
    """
    for info in (shard for split in manifest.splits.values() for shard in split.shards):
        _check_size(folder, info, stored_dtype(manifest))
        crc = 0
        with (folder / info.file).open("rb") as file:
            while data := file.read(READ_BYTES):
                crc = checksums.crc32c(data, crc)
                advance(len(data))
        if f"{crc:08x}" != info.crc32c:
            raise DataError(
                f"{folder / info.file} is damaged: its CRC-32C is {crc:08x}, "
                f"the manifest says {info.crc32c}; prepare the data again."
            )


def _mapped(folder: Path, info: ShardInfo, dtype: np.dtype) -> np.ndarray:
    _check_size(folder, info, dtype)
    return np.memmap(folder / info.file, dtype=dtype, mode="r")


def _check_size(folder: Path, info: ShardInfo, dtype: np.dtype) -> None:
    path = folder / info.file
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; prepare the data again.") from error
    if size != info.tokens * dtype.itemsize:
        raise DataError(
            f"{path} is damaged: it has {size} bytes instead of {info.tokens * dtype.itemsize}; "
            "prepare the data again."
        )
