"""Journeys of whole rounds: what is pulled is what the page's formulas say of what was pushed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from independent.blocks import INT8
from independent.control import Control
from independent.layout import Arrays, Box, Fragment, Layout, Tensor, flat
from independent.merges import Merged, norm
from independent.numbers import BF16, FP32, Array, through
from independent.replica import Replica, Work, pb

STEPS, TOKENS = 4, 100
WORK = Work(inner_steps=STEPS, tokens=TOKENS)


def layout(rows: int = 12) -> Layout:
    """Scalars, a tensor in two fragments, names that need escapes, and rows of one of 512."""
    tensors = (
        Tensor('t\u00e9k"s', (rows, 512), ("head", "\ufb01x", "\U0001f680")),
        Tensor("scale", ()),
        Tensor("w", (7, 5)),
    )
    fragments = (
        Fragment("embed", (Box(0, (0, 0), (rows, 512)),)),
        Fragment("middle", (Box(1, (), ()), Box(2, (0, 2), (4, 3)))),
        Fragment("end", (Box(2, (0, 0), (4, 2)), Box(2, (4, 0), (3, 5)))),
    )
    return Layout(tensors, fragments)


def noise(of: Layout, seed: int, scale: float = 0.01) -> Arrays:
    """fp32, the same for the same seed."""
    random = np.random.default_rng(seed)
    return [(scale * random.standard_normal(t.shape)).astype(np.float32) for t in of.tensors]


def create(control: Control, run: str, **settings: Any) -> dict[str, Any]:
    """The settings of a run, as the control plane completes them; a busy machine loses no lease."""
    settings["timeouts"] = {"lease": 30.0}
    body = {"name": run, "settings": settings}
    made = control.call("POST", "/runs", body)
    assert control.call("POST", "/runs", body)["created_at"] == made["created_at"], "idempotent"
    return made["settings"]


def close_to(values: Array, expected: Array, codec: int = FP32) -> None:
    """Equal but for fp32 sums, and the codec's rounding to nearest (int8: of changes to 0.1)."""
    error = np.abs(values.astype(np.float64) - expected)
    allowed = 2e-6 * (1.0 + np.abs(expected))
    if codec in (BF16, INT8):
        allowed += 2.0**-8 * np.abs(expected)
    if codec == INT8:
        allowed += 0.1 / 254
    assert np.all(error <= allowed), f"off by {np.max(error - allowed)} more than allowed"


class Rounds:
    """Replicas of one run that push, and what their rounds must make."""

    def __init__(self, first: Arrays, settings: Mapping[str, Any], *replicas: Replica) -> None:
        self.replicas, self.layout = replicas, replicas[0].layout
        codecs = {"fp32": FP32, "bf16": BF16, "int8": INT8}
        self.up, self.down = codecs[settings["codec"]["up"]], codecs[settings["codec"]["down"]]
        self.merged = [Merged(flat(first, f.boxes), settings) for f in self.layout.fragments]
        self.tokens = 0

    def push(self, gradients: Mapping[str, Arrays], verdicts: Sequence[int]) -> None:
        """One push of every replica, and the verdict it must have."""
        for replica, verdict in zip(self.replicas, verdicts, strict=True):
            for answer in replica.push_all(gradients[replica.name], codec=self.up, work=WORK):
                assert answer.verdict == answer.judged == verdict, answer
            self.tokens += TOKENS * (verdict == pb.VERDICT_ACCEPTED)

    def pull(self, gradients: Mapping[str, Arrays], revision: int) -> list[Any]:
        """Everyone gets what the formulas say; the last header of each fragment."""
        return [
            self._of_fragment(number, gradients, revision) for number in self.replicas[0].fragments
        ]

    def _of_fragment(self, number: int, gradients: Mapping[str, Arrays], revision: int) -> Any:
        boxes, header = self.layout.fragments[number].boxes, None
        pushed = {name: through(flat(g, boxes), self.up) for name, g in gradients.items()}
        shares = self.merged[number].round(pushed, STEPS)
        for replica in self.replicas:
            header = replica.pull(number, revision=revision)
            whole = BF16 if self.down == INT8 and not header.difference_from else self.down
            assert header.codec == whole and header.revision == revision
            assert header.committed_tokens == self.tokens
            counted = {c.replica: c for c in header.contributions if c.weight}
            assert counted.keys() == shares.keys()
            for name, contribution in counted.items():
                assert abs(contribution.weight - shares[name]) < 1e-6
                assert np.isclose(contribution.norm, norm(pushed[name]), rtol=1e-6)
            close_to(flat(replica.anchor, boxes), self.merged[number].parameters, self.down)
        return header


def averages_in_bf16(control: Control) -> None:
    """Plain averaging; θ keeps what bf16 rounds away, and a payload has several chunks."""
    settings = create(control, "plain", strategy="local-sgd", sync_every=STEPS, expected_replicas=2)
    assert settings["codec"] == {"up": "bf16", "down": "bf16"}
    of = layout(rows=1030)
    first = noise(of, 0, scale=1.0)
    with (
        Replica(control, "plain", "a", of, offer=first) as a,
        Replica(control, "plain", "b", of) as b,
    ):
        rounds = Rounds(first, settings, a, b)
        for revision in (1, 2, 3):
            gradients = {"a": noise(of, revision), "b": noise(of, -revision % 100)}
            rounds.push(gradients, [pb.VERDICT_ACCEPTED] * 2)
            rounds.pull(gradients, revision)


def penalties_in_fp32(control: Control) -> None:
    """EDiT: weights by norm, clip, Nesterov; then a push too large and one that is not finite."""
    fp32 = {"up": "fp32", "down": "fp32"}
    outer = {"lr": 0.7, "momentum": 0.9, "clip": 1.0}
    settings = create(
        control, "edit", sync_every=STEPS, expected_replicas=2, codec=fp32, outer=outer
    )
    of = layout()
    first = noise(of, 0, scale=1.0)
    with ExitStack() as stack:
        a, b = (
            stack.enter_context(Replica(control, "edit", name, of, offer=first)) for name in "ab"
        )
        rounds = Rounds(first, settings, a, b)
        for revision in (1, 2, 3):
            gradients = {"a": noise(of, revision, 0.02), "b": noise(of, 50 + revision, 0.03)}
            rounds.push(gradients, [pb.VERDICT_ACCEPTED] * 2)
            rounds.pull(gradients, revision)
        for revision, factor in ((4, 1e4), (5, np.nan)):
            good, bad = noise(of, revision, 0.02), [v * np.float32(factor) for v in gradients["b"]]
            rounds.push({"a": good, "b": bad}, [pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS])
            for header in rounds.pull({"a": good}, revision):
                (excluded,) = (c for c in header.contributions if c.replica == "b")
                assert excluded.weight == 0.0 and excluded.verdict == pb.VERDICT_ANOMALOUS
        again = b.push(0, bad, again=True, work=WORK)
        assert again.verdict == pb.VERDICT_DUPLICATE and again.judged == pb.VERDICT_ANOMALOUS
        assert again.non_finite and again.result_revision == 5


def by_rows(boxes: Sequence[Box], rank: int) -> Sequence[Box]:
    """Three ranks: rows of each box, 1 : 0 : rest; whole scalars to the last one."""
    mine: list[Box] = []
    for box in boxes:
        rows = box.sizes[0] if box.sizes else 0
        start, count = [(0, 1 if rows else 0), (0, 0), (1, rows - 1)][rank]
        if not box.sizes and rank == 2:
            mine.append(box)
        elif count > 0:
            mine.append(
                Box(box.tensor, (box.offsets[0] + start, *box.offsets[1:]), (count, *box.sizes[1:]))
            )
    return mine


def three_ranks(control: Control) -> None:
    """Three ranks, the middle one empty, beside one rank; and parameters come by difference."""
    codec = {"up": "fp32", "down": "int8"}
    settings = create(
        control, "ranks", strategy="diloco", sync_every=STEPS, expected_replicas=2, codec=codec
    )
    of = layout()
    first = noise(of, 0, scale=1.0)
    with (
        Replica(control, "ranks", "three", of, ranks=3, shards=by_rows, offer=first) as three,
        Replica(control, "ranks", "one", of) as one,
    ):
        rounds = Rounds(first, settings, three, one)
        for revision in (1, 2):
            gradients = {"three": noise(of, revision), "one": noise(of, 10 + revision)}
            rounds.push(gradients, [pb.VERDICT_ACCEPTED] * 2)
            rounds.pull(gradients, revision)
            for mine, theirs in zip(three.anchor, one.anchor, strict=True):
                assert np.array_equal(mine, theirs), "bit for bit, however it came"
        # Twice "embed" on two ranks; and on one rank "end", which is too small in parts.
        assert three.differences == one.differences == 4
