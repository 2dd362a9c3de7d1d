"""Where a job's data lies: a prepared folder, made of the job's sources on first use.

Imports no torch, so that a launcher can prepare data before it starts anybody.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from syncline.data.cache import cached, manifest_at
from syncline.data.errors import DataError
from syncline.data.manifest import MANIFEST_FILE, read_manifest
from syncline.data.sources import resolve
from syncline.data.tokenizer import load_tokenizer
from syncline.train.sections import DataSection


class Vocabulary(NamedTuple):
    """What a model takes from a tokenizer."""

    vocab_size: int
    """How many ids it has."""
    eos_id: int | None
    """The id that ends a document."""


NO_TOKENIZER = Vocabulary(0, None)
"""Of data that a factory makes: what ids there are is the model's to say."""


def prepared_folder(section: DataSection, *, progress: bool = False) -> Path:
    """The job's prepared data; sources are prepared on first use and found again afterwards.

    So is what lies elsewhere, of which a copy is made.

    Raises:
        DataError: a source or the folder cannot be used.
        Unreachable: the store that has it has broken off too often.
    """
    if section.path is not None:
        return section.path
    if section.url is not None:
        return cached(section.url, cache_of(section), progress=progress)
    assert section.source is not None
    folder = cache_of(section) / _cache_name(section)
    if (folder / MANIFEST_FILE).is_file():
        return folder
    from syncline.data.prepare import prepare  # pyarrow is slow to import, and seldom needed

    try:
        prepare(
            section.source,
            folder,
            section.tokenizer,
            section.held_out_fraction,
            text_field=section.text_field,
            progress=progress,
        )
    except DataError:
        # Another replica on this machine may have been faster; its folder is as good as ours.
        if not (folder / MANIFEST_FILE).is_file():
            raise
    return folder


def vocabulary_of(section: DataSection) -> Vocabulary:
    """The vocabulary of the data's tokenizer, before data is prepared.

    For a tokenizer that is still to be trained: the size that it is asked to have, and 0.

    Raises:
        DataError: the prepared folder or the tokenizer cannot be read.
    """
    if section.factory is not None:
        return NO_TOKENIZER
    if section.path is not None:
        tokenizer = read_manifest(section.path).tokenizer
        return Vocabulary(tokenizer.vocab_size, tokenizer.eos_id)
    if section.url is not None:
        tokenizer = manifest_at(section.url).tokenizer
        return Vocabulary(tokenizer.vocab_size, tokenizer.eos_id)
    kind, _, size = section.tokenizer.partition(":")
    if kind == "bpe":
        return Vocabulary(int(size) if size.isdecimal() else 1, 0)
    made = load_tokenizer(section.tokenizer)
    return Vocabulary(made.vocab_size, made.eos_id)


def cache_of(section: DataSection) -> Path:
    """The folder on this machine in which prepared data is found again."""
    if section.cache is not None:
        return section.cache
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "syncline" / "data"


def _cache_name(section: DataSection) -> str:
    """Names the sources by what can be seen without reading them: names and sizes.

    A tokenizer's file counts by what is in it, since one that was trained again lies where the one
    before did, and has its size.
    """
    found = [(source.name, source.size_bytes) for source in resolve(section.source or [])]
    key = [found, section.tokenizer, section.text_field, section.held_out_fraction]
    if section.tokenizer != "byte" and section.tokenizer.partition(":")[0] != "bpe":
        made = load_tokenizer(section.tokenizer)
        key += [made.fingerprint, made.eos_id]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return f"tokens-{digest[:16]}"
