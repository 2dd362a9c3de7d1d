"""What a prepared folder holds, in numbers for people and for ``--json``.

Pure: it restates a manifest and opens no file.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from syncline.data.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSummary:
    """One split of a prepared folder, in numbers."""

    name: str
    documents: int
    bytes: int
    tokens: int
    shards: int
    bytes_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a prepared folder holds, and how long it took to make or to check."""

    folder: str
    fingerprint: str
    """Of the manifest: replicas that train on the same data have the same."""
    tokenizer: str
    vocab_size: int
    dtype: str
    splits: tuple[SplitSummary, ...]
    seconds: float

    def as_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON."""
        return asdict(self)


def summary_of(folder: Path, manifest: Manifest, seconds: float) -> Summary:
    """The manifest's numbers; ``train`` comes before ``held-out``."""
    splits = tuple(
        SplitSummary(
            name=name,
            documents=split.documents,
            bytes=split.bytes,
            tokens=split.tokens,
            shards=len(split.shards),
            bytes_per_token=split.bytes / max(1, split.tokens),
        )
        for name, split in sorted(manifest.splits.items(), reverse=True)
    )
    return Summary(
        folder=str(folder),
        fingerprint=manifest.fingerprint,
        tokenizer=manifest.tokenizer.kind,
        vocab_size=manifest.tokenizer.vocab_size,
        dtype=manifest.dtype,
        splits=splits,
        seconds=seconds,
    )
