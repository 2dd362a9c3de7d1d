"""Journeys with the codecs that lose much: what each push lost is in the next, and counts once.

The residual is kept as docs/protocol.md section 5 says, one for each fragment and rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from independent.blocks import INT4, INT8, TOPK
from independent.control import Control
from independent.layout import Arrays, Layout, flat, write
from independent.merges import Merged
from independent.numbers import FP32, through
from independent.replica import Replica, pb
from independent.rounds import STEPS, WORK, by_rows, close_to, create, layout, noise

ROUNDS = 3
"""Before one that is too large: as many as it takes to know what is usual."""


class Owing:
    """A replica, its progress, and what has become of it; sums are in fp64."""

    def __init__(self, replica: Replica, codec: int) -> None:
        self.replica, self._codec = replica, codec
        self.owed = replica.layout.arrays()
        """e, of all ranks: their boxes are apart."""
        self.progress, self.accepted, self.discarded = (_sums(replica.layout) for _ in range(3))

    def push(self, made: Arrays, verdict: int, residual: int) -> Arrays:
        """Push what was made, and what is owed; what arrived of it."""
        replica = self.replica
        given = [one + e for one, e in zip(made, self.owed, strict=True)]
        answers = replica.push_all(given, codec=self._codec, work=WORK)
        arrived = replica.layout.arrays()
        for fragment, answer in zip(replica.fragments, answers, strict=True):
            assert (answer.verdict, answer.residual) == (verdict, residual), answer
            for rank in range(replica.ranks):
                boxes = replica.boxes(fragment, rank)
                sent = flat(given, boxes)
                came = through(sent, self._codec)
                write(arrived, boxes, came)
                if residual == pb.RESIDUAL_ACTION_KEEP:
                    write(self.owed, boxes, sent - came)
                elif residual == pb.RESIDUAL_ACTION_CLEAR:
                    write(self.owed, boxes, np.zeros_like(sent))
        if residual != pb.RESIDUAL_ACTION_RESTORE:  # else it is made still, and pushed again
            _add(self.progress, made)
        if residual == pb.RESIDUAL_ACTION_KEEP:
            _add(self.accepted, arrived)
        elif residual == pb.RESIDUAL_ACTION_CLEAR:
            _add(self.discarded, given)
        return arrived

    def adds_up(self) -> None:
        """What was accepted, what was discarded and e are all that was made."""
        parts = zip(self.progress, self.accepted, self.discarded, self.owed, strict=True)
        for made, accepted, discarded, owed in parts:
            error = np.abs(accepted + discarded + owed - made)
            assert np.all(error <= 1e-5 * (1.0 + np.abs(discarded))), float(np.max(error))


def nothing_is_lost(control: Control, name: str) -> None:
    """One push is too large, one comes a second time in its round; the others count."""
    codec = {"int8": INT8, "int4": INT4, "topk": TOPK}[name]
    codecs = {"up": name, "down": "fp32"}
    settings = create(control, name, sync_every=STEPS, expected_replicas=2, codec=codecs)
    of = layout()
    first = noise(of, 0, scale=1.0)
    with (
        Replica(control, name, "one", of, offer=first) as one,
        Replica(control, name, "three", of, ranks=3, shards=by_rows) as three,
    ):
        merged = [Merged(flat(first, f.boxes), settings) for f in of.fragments]
        a, b = Owing(one, codec), Owing(three, codec)
        accepted = pb.VERDICT_ACCEPTED, pb.RESIDUAL_ACTION_KEEP
        for revision in range(1, ROUNDS + 1):
            pushed = {
                "one": a.push(noise(of, revision), *accepted),
                "three": b.push(noise(of, 50 + revision), *accepted),
            }
            _pull(merged, pushed, revision, one, three)
        pushed = {"one": a.push(noise(of, 4), *accepted)}
        b.push(noise(of, 54, scale=100.0), pb.VERDICT_ANOMALOUS, pb.RESIDUAL_ACTION_CLEAR)
        _pull(merged, pushed, 4, one, three)
        b.adds_up()
        pushed = {"three": b.push(noise(of, 55), *accepted)}
        late = noise(of, 56)
        b.push(late, pb.VERDICT_STALE, pb.RESIDUAL_ACTION_RESTORE)
        pushed["one"] = a.push(noise(of, 5), *accepted)
        _pull(merged, pushed, 5, one, three)
        pushed = {"three": b.push(late, *accepted), "one": a.push(noise(of, 6), *accepted)}
        _pull(merged, pushed, 6, one, three)
        a.adds_up()
        b.adds_up()
        assert any(np.any(e) for e in b.owed) or name == "int8"


def _pull(
    merged: list[Merged], pushed: Mapping[str, Arrays], revision: int, *replicas: Replica
) -> None:
    """Everyone gets what the formulas say of what has arrived."""
    for number, fragment in enumerate(replicas[0].layout.fragments):
        came = {name: flat(values, fragment.boxes) for name, values in pushed.items()}
        merged[number].round(came, STEPS)
        for replica in replicas:
            replica.pull(number, revision=revision)
            close_to(flat(replica.anchor, fragment.boxes), merged[number].parameters, FP32)


def _sums(of: Layout) -> list[Any]:
    return [array.astype(np.float64) for array in of.arrays()]


def _add(to: list[Any], values: Arrays) -> None:
    for total, value in zip(to, values, strict=True):
        total += value
