"""The ledger over a long run with many losses: its data does not fall to pieces.

What is free again lies in pieces, between what others hold. It is given out first, and done with
the next push; so there are never more pieces than the lives of now and of late have left.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from syncline_control.core.ledger import Ledger, Life, Push
from syncline_proto.ranges import NOTHING, RANGES_MAX, Ranges, joined, split

SIZE, REPLICAS, FRAGMENTS = 20_000, 8, 3
WANT, ROUND_MAX = 300, 128
SETTLES, ROUNDS, LOSSES_MIN = 5, 600, 500
EVERYWHERE = (1 << FRAGMENTS) - 1


@dataclass
class Reader:
    life: Life
    grants: int = 0
    holds: Ranges = NOTHING

    def asks(self, ledger: Ledger) -> list[int]:
        """Half of what it held is read: ask for more; the lengths of the pieces that came."""
        if 2 * sum(stop - start for _, start, stop in self.holds) > WANT:
            return []
        self.grants += 1
        given = ledger.grant(self.life, self.grants, WANT)
        self.holds = joined(self.holds, given)
        return [stop - start for _, start, stop in given]

    def reads(self, dice: random.Random) -> Ranges:
        data, self.holds = split(self.holds, dice.randint(1, ROUND_MAX))
        return data


def test_what_many_losses_leave_is_given_out_in_pieces_as_long_as_at_first() -> None:
    dice, ledger = random.Random(7), Ledger(SIZE, FRAGMENTS)
    readers = [Reader(Life(f"r{number}", 1)) for number in range(REPLICAS)]
    pieces: list[int] = []
    spans: list[int] = []
    said = deque([0] * SETTLES)  # each fragment's word comes some rounds later
    version = 1
    for now in range(ROUNDS):
        alive = dict(reader.life for reader in readers)
        ledger.see_lives(alive, now, 0.0, version=version, settled=said.popleft())
        said.append(version)
        for reader in readers:
            pieces += reader.asks(ledger)
        for at, reader in enumerate(readers):
            data, is_lost = reader.reads(dice), dice.random() < 0.2
            assert len(data) <= RANGES_MAX
            fragments = dice.randint(0, EVERYWHERE) if is_lost else EVERYWHERE
            ledger.cover([Push(fragments, data, True, reader.life)], float(now))
            if is_lost:
                version += 1
                if dice.random() < 0.5:  # it was drained
                    ledger.take_back(reader.life, reader.holds)
                readers[at] = Reader(Life(reader.life.replica, reader.life.incarnation + 1))
        spans.append(len(ledger.spans))
    assert version > LOSSES_MIN and ledger.epoch > 5
    third, many = ROUNDS // 3, len(pieces) // 3
    assert max(spans[-third:]) <= 1.5 * max(spans[:third])
    assert 3 * sum(pieces[-many:]) > 2 * sum(pieces[:many]), "shorter and shorter"
    assert max(spans) < (SETTLES + 2) * 2 * REPLICAS
