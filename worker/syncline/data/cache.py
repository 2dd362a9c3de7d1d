"""A local copy of prepared data that lies on shared or object storage.

Training reads sequences in a permuted order, so it soon wants every shard: all are fetched before
it begins, once for a machine, and mapped from there by every later run. A copy is named by its
content, and is whole once its manifest is there, which is written last; what an interrupted fetch
has brought is kept. Every byte is checked against the manifest. Nothing here removes a copy.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
from awscrt import checksums

from syncline.data.errors import DataError
from syncline.data.manifest import MANIFEST_FILE, Manifest, ShardInfo, parsed
from syncline.data.screen import Meter, meter
from syncline.data.tokenizer import COMPANIONS, TOKENIZER_FILE
from syncline.disk import to_disk
from syncline_proto.depot import Depot
from syncline_proto.errors import CheckpointError, ConfigError, InvalidRequest, Unreachable
from syncline_proto.locks import owned

MANIFEST_BYTES_MAX = 64 << 20
TOKENIZER_BYTES_MAX = 1 << 30
AT_ONCE = 4
"""Shards that are fetched at a time."""

TRIES = 5
"""For each file, where a store breaks off; with pauses of 1, 2, 4 and 8 seconds in between."""

LOOK_S = 0.5
"""Between two looks at whether another process has done it."""

HALF = ".half"


def manifest_at(url: str) -> Manifest:
    """The manifest of the prepared data at an address.

    Raises:
        DataError: there is none, or it is damaged or too new.
    """
    return parsed(_small(_depot(url), MANIFEST_FILE, MANIFEST_BYTES_MAX), f"{url}/{MANIFEST_FILE}")


def tokenizer_at(url: str, cache: Path) -> Path:
    """A local folder with the tokenizer of the data at an address; no shard is fetched for it.

    Raises:
        DataError: there is no prepared data, or the cache cannot be written.
    """
    folder = _folder(manifest_at(url), cache)
    _keep_tokenizer(_depot(url), folder)
    return folder


def cached(url: str, cache: Path, *, progress: bool = False) -> Path:
    """The local folder with the prepared data at an address, fetched if it is not there yet.

    Where another process of this machine is at it already, that one is waited for.

    Args:
        url: an absolute path, or what ``Depot`` takes (``s3://bucket/folder``).
        cache: the folder that holds copies.

    Raises:
        DataError: there is no prepared data, it is damaged, or the cache has no room for it.
        Unreachable: the store has broken off too often.
    """
    manifest = manifest_at(url)
    folder = _folder(manifest, cache)
    with _turn(folder):
        if not (folder / MANIFEST_FILE).is_file():
            depot = _depot(url)
            _keep_tokenizer(depot, folder)
            _fetch_shards(depot, manifest, folder, progress)
            _write(folder / MANIFEST_FILE, [manifest.to_json()])
    return folder


def _fetch_shards(depot: Depot, manifest: Manifest, folder: Path, progress: bool) -> None:
    width = np.dtype(manifest.dtype).itemsize
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    _check_there(depot, shards, width)
    for half in folder.glob(f"*.bin.*{HALF}"):  # of who was killed amid it
        half.unlink(missing_ok=True)
    lacking = [one for one in shards if not (folder / one.file).is_file()]
    total = sum(shard.tokens * width for shard in lacking)
    _check_room(folder, total, depot.url)
    broken = Event()
    with meter("fetching", total, shown=progress) as line, ThreadPoolExecutor(AT_ONCE) as pool:
        under_way = [
            pool.submit(_fetch_shard, depot, one, folder, width, line, broken) for one in lacking
        ]
        try:
            for one in under_way:
                one.result()
        except BaseException:
            broken.set()
            pool.shutdown(cancel_futures=True)
            raise


def _fetch_shard(
    depot: Depot, info: ShardInfo, folder: Path, width: int, line: Meter, broken: Event
) -> None:
    """Fetch one shard; it appears whole and checked.

    Raises:
        DataError: it is not what the manifest says, or the cache cannot be written.
        Unreachable: the store has broken off too often.
    """

    def told() -> Iterator[bytes]:
        crc, size = 0, 0
        for piece in depot.pieces(info.file):
            if broken.is_set():
                raise Unreachable(f"{depot.url}/{info.file}: fetching was broken off.")
            crc, size = checksums.crc32c(piece, crc), size + len(piece)
            line.advance(len(piece))
            yield piece
        if (size, f"{crc:08x}") != (info.tokens * width, info.crc32c):
            raise DataError(
                f"{depot.url}/{info.file} is damaged: it has {size} bytes and the CRC-32C "
                f"{crc:08x}, the manifest says {info.tokens * width} and {info.crc32c}; put the "
                "data there again."
            )

    for attempt in range(1, TRIES + 1):
        try:
            _write(folder / info.file, told())
            return
        except CheckpointError as error:
            if attempt == TRIES or broken.wait(2.0 ** (attempt - 1)):
                raise Unreachable(
                    f"{error.message.rstrip('.')}; tried {attempt} times. Look at the store, and "
                    "start again, which goes on from what is here."
                ) from None


def _keep_tokenizer(depot: Depot, folder: Path) -> None:
    """Fetch the tokenizer's files; those beside the first may not be there."""
    try:
        there = depot.sizes()
    except CheckpointError as error:
        raise DataError(error.message) from None
    for name in (TOKENIZER_FILE, *COMPANIONS):
        if name in there and not (folder / name).is_file():
            _write(folder / name, [_small(depot, name, TOKENIZER_BYTES_MAX)])


def _check_there(depot: Depot, shards: Iterable[ShardInfo], width: int) -> None:
    """Refuse data of which a shard lacks bytes; ``width`` is those of a token.

    Raises:
        DataError: a shard is missing or cut off.
    """
    try:
        there = depot.sizes()
    except CheckpointError as error:
        raise DataError(error.message) from None
    for info in shards:
        size, wanted = there.get(info.file), info.tokens * width
        if size != wanted:
            has = "is missing" if size is None else f"has {size} bytes instead of {wanted}"
            raise DataError(f"{depot.url}/{info.file} {has}; put the data there again.")


def _check_room(folder: Path, wanted: int, url: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise _unwritten(folder, error) from error
    if wanted > free:
        raise DataError(
            f"{url} needs {wanted / 1e9:.2f} GB more in {folder.parent}, which has "
            f"{free / 1e9:.2f} GB free; make room, or set data.cache to another folder."
        )


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that appears whole; nothing of it is left where ``pieces`` raises."""
    half = path.with_name(f"{path.name}.{secrets.token_hex(4)}{HALF}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with half.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        to_disk(half)
        half.replace(path)
        to_disk(path.parent)
    except OSError as error:
        raise _unwritten(path, error) from error
    finally:
        half.unlink(missing_ok=True)


def _small(depot: Depot, name: str, most: int) -> bytes:
    """All of a small file.

    Raises:
        DataError: it is not there, or longer than ``most`` bytes.
    """
    data = bytearray()
    try:
        for piece in depot.pieces(name):
            data += piece
            if len(data) > most:
                raise DataError(f"{depot.url}/{name} is too long to be what it should.")
    except CheckpointError as error:
        said = error.message.rstrip(".")
        raise DataError(
            f"there is no readable prepared data at {depot.url} ({said}); make it with: syncline "
            "data prepare, and copy the folder there."
        ) from None
    return bytes(data)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Let one process at a time fill the folder; whoever waits goes on once it is whole."""
    path = folder.with_name(f".{folder.name}.lock")
    lock = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        while (lock := owned(path)) is None and not (folder / MANIFEST_FILE).is_file():
            time.sleep(LOOK_S)
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _folder(manifest: Manifest, cache: Path) -> Path:
    return cache / f"shards-{manifest.fingerprint[:16]}"


def _depot(url: str) -> Depot:
    try:
        return Depot(url)
    except InvalidRequest as error:
        raise ConfigError(f"data.{error.message}") from None
    except CheckpointError as error:
        raise DataError(error.message) from None


def _unwritten(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot write {path}: {error.strerror or error}; set data.cache to another.")
