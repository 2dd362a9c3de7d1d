"""What a prepared folder says about itself: manifest.json, as data.

The manifest is written last and read first. Reading trusts nothing in it: names may not leave the
folder, and counts must agree with one another.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from syncline.data.errors import DataError
from syncline_proto.words import sentence

FORMAT = "syncline-tokens"
VERSION = 1
MANIFEST_FILE = "manifest.json"

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """One file of token ids."""

    file: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*\.bin$")]
    tokens: Annotated[int, Field(gt=0)]
    crc32c: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitInfo:
    """One split. ``bytes`` counts the source text as UTF-8; ``tokens`` counts the
    end-of-document tokens too."""

    documents: Count
    bytes: Count
    tokens: Count
    shards: tuple[ShardInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInfo:
    """The tokenizer whose files lie beside the manifest."""

    kind: str
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    vocab_size: Annotated[int, Field(gt=0)]
    eos_id: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A prepared folder. Ids are little-endian unsigned integers of ``dtype``."""

    format: Literal["syncline-tokens"] = FORMAT
    version: int = VERSION
    tokenizer: TokenizerInfo
    dtype: Literal["uint16", "uint32"]
    splits: dict[str, SplitInfo]

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex over the manifest: equal means equal tokens in equal order."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """The file's content; the same manifest always gives the same bytes."""
        return json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n"


def is_prepared(folder: Path) -> bool:
    """Whether the folder is a result of ours, whole or damaged.

    The manifest must say so: files of that name are other programs', too.
    """
    try:
        return json.loads((folder / MANIFEST_FILE).read_bytes()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError):
        return False


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder.

    Raises:
        DataError: the folder is not a prepared one, or its manifest is damaged or too new.
    """
    path = folder / MANIFEST_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{folder} is not prepared data (no readable {MANIFEST_FILE}: {error.strerror}); "
            "make it with: syncline data prepare."
        ) from error
    return parsed(data, str(path))


def parsed(data: bytes, where: str) -> Manifest:
    """The manifest in a file's bytes; ``where`` names the file.

    Raises:
        DataError: it is damaged or too new.
    """
    try:
        manifest = TypeAdapter(Manifest).validate_json(data)
    except ValidationError as error:
        raise DataError(f"{where} is damaged: {sentence(error)}") from None
    if manifest.version != VERSION:
        raise DataError(
            f"{where} is of format version {manifest.version}, this program reads {VERSION}; "
            "prepare the data again."
        )
    for name, split in manifest.splits.items():
        if split.tokens != sum(shard.tokens for shard in split.shards):
            raise DataError(f"{where} is damaged: the shards of {name} do not add up.")
    return manifest
