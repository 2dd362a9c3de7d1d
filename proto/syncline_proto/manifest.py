"""What a checkpoint is: fragments' files, and a manifest that says which, written last.

    URL/NAME/00000-1a2b3c4d.safetensors    a fragment as its sync service keeps it: parameters,
                                           momentum, and as metadata what was learnt of norms
    URL/NAME/checkpoint.json               the manifest; where there is none, there is no checkpoint

A file's name ends with its CRC-32C, so a second attempt writes the same bytes under the same name,
in one step, and two checkpoints of one name never mix. The manifest is sealed with a CRC-32C of its
own. Pure: where the bytes come from is the depot's business.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from syncline_proto.errors import CheckpointDamaged, InvalidRequest
from syncline_proto.layout import Layout, layout_from_json
from syncline_proto.names import NAME_PATTERN
from syncline_proto.rest import Count
from syncline_proto.seals import Seal
from syncline_proto.settings import RunSettings

MANIFEST = "checkpoint.json"

MANIFEST_BYTES_MAX = 64 << 20
"""Of its file; a layout of 100,000 fragments is a tenth of it."""

FORMAT = 1
"""Of the manifest; another one is refused rather than guessed at."""

TIME_MAX = 253_402_300_800.0
"""No calendar of Python's goes beyond the year 9999."""

FILE_PATTERN = r"^[0-9]{5,6}-[0-9a-f]{8}\.safetensors$"

SEAL = Seal("format", FORMAT, "checkpoint")


class Form(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Entry(Form):
    """One fragment's file."""

    fragment: Count
    file: str = Field(pattern=FILE_PATTERN)
    bytes: Count
    crc32c: Count
    """Of the whole file."""
    revision: Count
    committed_tokens: Count


class Manifest(Form):
    """One cut of a run, and all that a new one needs to begin from it."""

    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Its own; a run that begins from it names it."""
    run: str = Field(pattern=NAME_PATTERN)
    revision: Count
    """Of all fragments; of a run whose rounds do not wait, the smallest."""
    committed_tokens: Count
    """Of the run: those of its last fragment."""
    created_at: float = Field(ge=0.0, lt=TIME_MAX)
    """Seconds since 1970, UTC."""
    fingerprint: str
    """Of the layout."""
    layout: dict[str, Any]
    """Its canonical JSON, as an object."""
    settings: RunSettings
    job: dict[str, Any]
    """What the run's trainer was asked to do; empty where there was none."""
    entries: tuple[Entry, ...]
    """In the order of fragments, one for each."""

    @cached_property
    def parsed_layout(self) -> Layout:
        """The layout."""
        return layout_from_json(json.dumps(self.layout))

    @property
    def bytes(self) -> int:
        """Of all its fragments' files."""
        return sum(entry.bytes for entry in self.entries)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        try:
            found = self.parsed_layout.fingerprint()
        except (LookupError, TypeError, InvalidRequest) as error:
            raise ValueError(f"its layout is none ({error})") from None
        if found != self.fingerprint:
            raise ValueError("its layout has another fingerprint")
        fragments = [entry.fragment for entry in self.entries]
        if fragments != list(range(len(self.parsed_layout.fragments))):
            raise ValueError("it has not exactly one file for each fragment, in order")
        if any(entry.file != file_name(entry.fragment, entry.crc32c) for entry in self.entries):
            raise ValueError("a file is not named by its fragment and its CRC-32C")
        revisions = {entry.revision for entry in self.entries}
        if min(revisions) != self.revision or (
            len(revisions) > 1 and not self.settings.asynchronous
        ):
            raise ValueError("its fragments are not of one revision")
        if self.committed_tokens != self.entries[-1].committed_tokens:
            raise ValueError("its committed_tokens are not its last fragment's")
        return self


def check_file(where: str, entry: Entry, size: int, crc32c: int) -> None:
    """Compare what a file has with what its manifest says; ``where`` it lies is for the message.

    Raises:
        CheckpointDamaged: it has another length, or another checksum.
    """
    if size != entry.bytes:
        said = f"{size} bytes where the manifest says {entry.bytes}"
    elif crc32c != entry.crc32c:
        said = f"its {size} bytes have another checksum than the manifest says"
    else:
        return
    raise CheckpointDamaged(f"{where} is damaged: {said}.")


def file_name(fragment: int, crc32c: int) -> str:
    """The name of a fragment's file in a checkpoint."""
    return f"{fragment:05d}-{crc32c:08x}.safetensors"


def sealed(manifest: Manifest) -> bytes:
    """The manifest's file."""
    return SEAL.close(manifest.model_dump_json())


def unsealed(data: bytes, where: str) -> Manifest:
    """Read what ``sealed`` gave; ``where`` it lies is for the message.

    Raises:
        CheckpointDamaged: a bit is another, or the format is.
    """
    try:
        text = SEAL.open(data)
    except ValueError as error:
        raise CheckpointDamaged(
            f"{where} is damaged, or no manifest that this Syncline reads ({error}); use another."
        ) from None
    return manifest_of(text, where)


def manifest_of(text: str, where: str) -> Manifest:
    """Read a manifest's JSON.

    Raises:
        CheckpointDamaged: it is none.
    """
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        what = ".".join(map(str, first["loc"]))
        raise CheckpointDamaged(
            f"{where} is no manifest of this version: {f'{what}: ' if what else ''}{first['msg']}."
        ) from None
