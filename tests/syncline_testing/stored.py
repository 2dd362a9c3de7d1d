"""One fragment's files by hand: what is committed, revision by revision and step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Saved
from syncline_sync.entries import Place
from syncline_sync.fragment_store import FragmentStore

SIZE = 600
"""Elements of the fragment."""

Commit = Callable[[FragmentStore], None]


def fragment(folder: Path) -> FragmentStore:
    return FragmentStore(folder, Place(run="run", fragment=0, layout="00ff", numel=SIZE))


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def revision(number: int) -> Commit:
    saved = Saved(revision=number, committed_tokens=number, gradient_step=0)

    def commit(store: FragmentStore) -> None:
        store.commit(saved, values(number), values(100 + number))
        store.sweep()

    return commit


def gradient(step: int, life: int = 0) -> Commit:
    saved = Saved(revision=0, gradient_step=step, committed_tokens=10 * life)
    return lambda store: store.commit_gradient(saved, values(1000 + step + 50 * life))


def told(store: FragmentStore) -> Any:
    """Everything that a start finds of a fragment, older revisions too, as what can be compared."""
    loaded = store.load()
    if loaded is None:
        return None
    whole, kept = np.array([[0, store.place.numel]], np.int64), list[Any]()
    for is_gradient, saved in ((False, loaded.revisions), (True, loaded.gradients)):
        for one in saved:
            codec = pb.CODEC_BF16 if one.is_by_difference else pb.CODEC_FP32
            source = store.filed(one, codec, is_gradient=is_gradient)
            kept.append((one, bytes(source.read(whole))))
            source.close()
    offer = loaded.offer or (None, None)
    arrays = (loaded.parameters, loaded.momentum, loaded.gradient, loaded.published, offer[1])
    return loaded.saved, [one is not None and one.tobytes() for one in arrays], kept, offer[0]
