"""EDiT's whole merge through the real service, against the pure core: equal bit for bit.

Momentum, unequal norms, one outlier, one round of nothing but NaN, and a restart of the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from syncline_proto.codec import Float32
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Contribution
from syncline_sync.entries import Loaded
from syncline_sync.store import RunStore
from syncline_testing.pure import PureFragment
from syncline_testing.service import RUN, Service, flat_layout, service

SIZE = 500
LAYOUT = flat_layout(SIZE)
REPLICAS = ("a", "b", "c")
SETTINGS = RunSettings.model_validate(
    {
        "strategy": "edit",
        "min_replicas": 3,
        "sync_every": 4,
        "outer": {"momentum": 0.9},
        # T is small against the norms' spread, so that the reference has to move.
        "penalty": {"kappa": 0.02, "step_power": 0.5},
        "codec": {"up": "fp32", "down": "fp32"},
    }
)
ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Sent:
    """What a replica pushes in a round."""

    values: Float32
    inner_steps: int


class Twins:
    """The same pushes to the service and to the pure core, and what both made of them."""

    def __init__(self, folder: Path, anchor: Float32) -> None:
        self.folder = folder
        self.pure = PureFragment(SETTINGS, anchor, dict.fromkeys(REPLICAS, 1))
        self.seqs = {"a": 1, "b": 0, "c": 0}  # a has offered revision 0
        self.rescaled = 0
        """Pushes before which the accumulator was scaled."""

    def stored(self) -> Loaded:
        """The service's own fp32 arrays, from its files."""
        loaded = RunStore(self.folder, RUN).fragments(LAYOUT)[0].load()
        assert loaded is not None
        return loaded

    async def round(self, s: Service, sent: Mapping[str, Sent]) -> None:
        """One round in this order of pushes; then nothing may tell the twins apart."""
        revision = self.pure.core.saved.revision
        heard: dict[str, pb.PushResponse] = {}
        for replica, push in sent.items():
            self.seqs[replica] += 1
            heard[replica] = await s.push(
                push.values,
                replica,
                base_revision=revision,
                seq=self.seqs[replica],
                inner_steps=push.inner_steps,
                tokens=push.inner_steps,
                last_step=push.inner_steps,
            )
        header, values = await s.pull(revision=revision + 1)
        order = [c.replica for c in header.contributions]
        assert order == list(sent), "folded as they came"
        for replica in order:
            judgement = self.pure.push(replica, sent[replica].values, sent[replica].inner_steps)
            assert heard[replica].verdict == judgement.verdict
        self.pure.close()
        assert np.array_equal(values, self.pure.parameters)
        self.are_equal()

    def are_equal(self) -> None:
        loaded, ours = self.stored(), self.pure.core.saved
        assert np.array_equal(loaded.parameters, self.pure.parameters)
        assert np.array_equal(loaded.momentum, self.pure.momentum)
        assert _told(loaded.saved.contributions) == _told(ours.contributions)
        assert loaded.saved.statistics == ours.statistics
        assert loaded.saved.revision == ours.revision
        self.rescaled += sum(c.rescale != 1.0 for c in loaded.saved.contributions)


def _told(contributions: tuple[Contribution, ...]) -> list[str]:
    """As text, in which NaN equals NaN; floats are written to the last bit."""
    return [repr(c) for c in contributions]


def pushes(rng: np.random.Generator, number: int) -> dict[str, Sent]:
    """Unequal norms and steps; the order turns from round to round."""
    turn = number % len(REPLICAS)
    found: dict[str, Sent] = {}
    for replica in (*REPLICAS[turn:], *REPLICAS[:turn]):
        direction = rng.standard_normal(SIZE)
        steps = int(rng.integers(1, 8))
        norm = rng.uniform(0.6, 1.6) * np.sqrt(steps)
        values = (norm * direction / np.linalg.norm(direction)).astype(np.float32)
        found[replica] = Sent(values, steps)
    return found


async def started(s: Service) -> None:
    await s.members(dict.fromkeys(REPLICAS, 1))
    for replica in REPLICAS:
        await s.open(LAYOUT, replica)


def test_the_service_merges_as_the_pure_core_does_to_the_last_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    anchor = rng.standard_normal(SIZE).astype(np.float32)
    twins = Twins(tmp_path, anchor)

    async def learn_and_offend() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await started(s)
            await s.offer(anchor, "a")
            for number in range(ROUNDS):
                await twins.round(s, pushes(rng, number))
            assert twins.rescaled, "no weight left the range: this tests less than it says"
            offence = pushes(rng, 0)
            offence["b"] = Sent(offence["b"].values * np.float32(1000.0), 4)
            await twins.round(s, offence)
            assert _verdicts(twins) == {
                "a": pb.VERDICT_ACCEPTED,
                "b": pb.VERDICT_ANOMALOUS,
                "c": pb.VERDICT_ACCEPTED,
            }
            before = twins.stored()
            assert np.linalg.norm(before.momentum) > 0.1
            poison = Sent(np.full(SIZE, np.nan, np.float32), 4)
            await twins.round(s, dict.fromkeys(REPLICAS, poison))
            assert set(_verdicts(twins).values()) == {pb.VERDICT_ANOMALOUS}
            after = twins.stored()
            assert np.array_equal(after.parameters, before.parameters)
            assert np.array_equal(after.momentum, before.momentum)
            assert not s.faults

    async def go_on() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await started(s)
            for number in range(2):
                await twins.round(s, pushes(rng, number))
            assert set(_verdicts(twins).values()) == {pb.VERDICT_ACCEPTED}
            assert not s.faults

    asyncio.run(learn_and_offend())
    asyncio.run(go_on())


def _verdicts(twins: Twins) -> dict[str, int]:
    return {c.replica: c.verdict for c in twins.stored().saved.contributions}
