"""Turning sources into a prepared folder, and looking at one.

The folder is made under a hidden name beside its place and renamed when it is whole, so that its
name never stands for half of it; whatever stops the work, Ctrl+C included, removes the hidden one
(a kill -9 leaves it, and it may be deleted). Memory holds one batch of documents at a time.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from syncline.data.errors import DataError
from syncline.data.manifest import (
    MANIFEST_FILE,
    Manifest,
    SplitInfo,
    TokenizerInfo,
    read_manifest,
)
from syncline.data.placing import new_folder
from syncline.data.readers import Document
from syncline.data.screen import Meter, meter
from syncline.data.shards import stored_dtype, verify
from syncline.data.sources import Source, resolve
from syncline.data.split import HELD_OUT, TRAIN, split_of, unit_hash
from syncline.data.summary import Summary, summary_of
from syncline.data.tokenizer import Tokenizer, bpe_size_of, load_tokenizer, train_bpe, utf8_bytes
from syncline.data.writer import SHARD_BYTES_MAX, SplitWriter, token_dtype

BATCH_CHARACTERS = 1 << 20
BATCH_DOCUMENTS = 1024
# What a BPE is trained on: more hardly changes the merges, and the trainer's memory grows with it.
BPE_SAMPLE_BYTES = 64 << 20


def prepare(
    sources: Sequence[str | Path],
    out: str | Path,
    tokenizer: str | Tokenizer = "byte",
    held_out_fraction: float = 0.05,
    vocab_size: int | None = None,
    *,
    text_field: str = "text",
    overwrite: bool = False,
    progress: bool = True,
    shard_bytes_max: int = SHARD_BYTES_MAX,
) -> Summary:
    """Tokenize the sources into the new folder ``out``.

    sources: see ``sources``. tokenizer: ``byte``, ``bpe`` or ``bpe:VOCAB`` to train one on the
    training split, or what ``load_tokenizer`` takes. Documents are split by a hash of their
    names; where that leaves a split empty, since the text has few documents, the last part of
    all tokens is held out.

    Raises:
        DataError: a source, the tokenizer or the place cannot be used. Nothing is left behind.
    """
    started = time.monotonic()
    if not 0.0 <= held_out_fraction < 1.0:
        raise DataError(f"the held-out fraction must be in [0, 1), got {held_out_fraction}.")
    bpe_size = bpe_size_of(tokenizer, vocab_size)
    found = resolve(sources, text_field)
    with new_folder(Path(out), overwrite=overwrite) as folder:
        if bpe_size is not None:
            made = _trained(found, held_out_fraction, bpe_size, progress)
        else:
            made = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        writers = {
            split: SplitWriter(
                folder=folder,
                split=split,
                vocab_size=made.vocab_size,
                shard_bytes_max=shard_bytes_max,
            )
            for split in (TRAIN, HELD_OUT)
        }
        try:
            with meter("preparing", _size_of(found), shown=progress) as line:
                _fill(writers, made, found, held_out_fraction, line)
            manifest = _finished(writers, made, held_out_fraction)
        finally:
            for writer in writers.values():
                writer.close()
        made.save(folder)
        (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
    return summary_of(Path(out), manifest, time.monotonic() - started)


def inspect(folder: str | Path, *, progress: bool = True) -> Summary:
    """Say what a prepared folder holds, after checking every byte of it.

    Raises:
        DataError: it is not one, or a file is missing or damaged; the file is named.
    """
    started = time.monotonic()
    folder = Path(folder)
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint != manifest.tokenizer.fingerprint:
        raise DataError(
            f"the tokenizer in {folder} is not the one that made its tokens; "
            "prepare the data again."
        )
    item_bytes = stored_dtype(manifest).itemsize
    total = sum(split.tokens for split in manifest.splits.values()) * item_bytes
    with meter("checking", total, shown=progress) as line:
        verify(folder, manifest, line.advance)
    return summary_of(folder, manifest, time.monotonic() - started)


def _trained(
    sources: Sequence[Source], held_out_fraction: float, vocab_size: int, progress: bool
) -> Tokenizer:
    """A BPE of an even sample of the training split, which says nothing of the held-out one."""
    total = _size_of(sources)
    share = 1.0 if total is None else min(1.0, BPE_SAMPLE_BYTES / max(1, total))

    def texts(line: Meter) -> Iterator[str]:
        taken = 0
        for document in _documents(sources):
            line.advance(document.read_bytes)
            is_sampled = unit_hash(f"sample:{document.key}") < share
            if is_sampled and split_of(document.key, held_out_fraction) == TRAIN:
                yield document.text
                taken += len(document.text)
            if taken >= BPE_SAMPLE_BYTES:
                return
        if not taken:
            # So few documents that none is both in the sample and in the training split.
            yield from (document.text for document in _documents(sources))

    with meter("reading for the tokenizer", total, shown=progress) as line:
        return train_bpe(texts(line), vocab_size, progress=progress)


def _fill(
    writers: dict[str, SplitWriter],
    tokenizer: Tokenizer,
    sources: Sequence[Source],
    held_out_fraction: float,
    line: Meter,
) -> None:
    """Write every document to its split, each ended by the end-of-document id."""
    end = np.array([tokenizer.eos_id], dtype=np.uint32)
    unended: SplitWriter | None = None
    for batch in _batched(_documents(sources)):
        encoded = tokenizer.encode_many([document.text for document in batch])
        for document, ids in zip(batch, encoded, strict=True):
            writer = writers[split_of(document.key, held_out_fraction)]
            if unended is not None and unended is not writer:
                # The next piece of a long document went elsewhere: what follows here is not
                # its continuation.
                unended.append(end)
                unended.documents += 1
            writer.append(ids)
            writer.bytes += len(utf8_bytes(document.text))
            line.advance(document.read_bytes)
            unended = None if document.ends else writer
            if document.ends:
                writer.append(end)
                writer.documents += 1
        line.say(f"{sum(writer.documents for writer in writers.values()):,} documents")


def _finished(
    writers: dict[str, SplitWriter], tokenizer: Tokenizer, held_out_fraction: float
) -> Manifest:
    """Close the shards and describe them."""
    if not any(writer.tokens for writer in writers.values()):
        raise DataError("the sources hold no text.")
    if held_out_fraction > 0.0:
        _share_out(writers[TRAIN], writers[HELD_OUT], tokenizer, held_out_fraction)
    return Manifest(
        tokenizer=TokenizerInfo(
            kind=tokenizer.kind,
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
        ),
        dtype="uint16" if token_dtype(tokenizer.vocab_size).itemsize == 2 else "uint32",
        splits={
            name: SplitInfo(
                documents=writer.documents,
                bytes=writer.bytes,
                tokens=writer.tokens,
                shards=writer.finish(),
            )
            for name, writer in writers.items()
        },
    )


def _share_out(
    train: SplitWriter, held_out: SplitWriter, tokenizer: Tokenizer, fraction: float
) -> None:
    """Where one split came out empty, hold out the last part of all tokens instead.

    Few documents lead here, a single text file above all. The part is cut between any two
    tokens; its bytes are those of its decoded text.
    """
    if train.tokens and held_out.tokens:
        return
    full, empty = (train, held_out) if train.tokens else (held_out, train)
    share = fraction if full is train else 1.0 - fraction
    # One token and the end at least stay on each side.
    count = min(max(2, round(full.tokens * share)), full.tokens - 2)
    if count < 1:
        raise DataError("the sources hold too little text to hold some out of it.")
    tail = full.take_tail(count)
    moved = len(utf8_bytes(tokenizer.decode(tail.tolist())))
    full.append(np.array([tokenizer.eos_id]))
    empty.append(tail)
    empty.bytes += moved
    full.bytes -= moved
    empty.documents += 1


def _documents(sources: Sequence[Source]) -> Iterator[Document]:
    """All documents that hold something."""
    return (document for source in sources for document in source.read() if document.text)


def _batched(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Documents in batches that keep a tokenizer's threads busy and memory small."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _size_of(sources: Sequence[Source]) -> int | None:
    sizes = [source.size_bytes for source in sources]
    return None if None in sizes else sum(size or 0 for size in sizes)
