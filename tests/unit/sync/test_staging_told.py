"""Pushes that have their answer, and are to be folded still."""

from __future__ import annotations

import pytest

from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.core.record import Judgement
from syncline_sync.staging import Staging
from syncline_testing.staging import BYTES, header, run, sent

YES = Judgement(verdict=pb.VERDICT_ACCEPTED, judged=pb.VERDICT_ACCEPTED, result=1)


@pytest.mark.parametrize("seq", [6, 8])
def test_a_push_that_has_its_answer_holds_room_and_hinders_no_other(seq: int) -> None:
    """An older one may come after it: one that came late, and was lost in a crash."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        whole, _ = sent(staging, header(seq=7))
        staging.tell(whole, YES)
        assert await whole.answer == YES and budget.used == BYTES
        assert whole.payloads(), "it is to be folded still"
        other, _ = sent(staging, header(seq=seq))
        staging.settle(other, YES)
        assert budget.used == BYTES
        staging.release(whole)
        staging.release(whole)
        assert budget.used == 0

    run(scenario)
