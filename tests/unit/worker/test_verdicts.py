"""What a replica's log says of its verdicts."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from syncline.core.agreement import Answer
from syncline.push import Outcome
from syncline.tally import Tally
from syncline.verdicts import Verdicts

GOOD = Outcome(answer=Answer.MERGED)
BAD = Outcome(answer=Answer.MERGED, anomalous=True, reason="its norm is 12 times the mean")


def test_exclusions_are_said_once_and_so_is_their_end() -> None:
    """As after a cold restart, round by round: of three fragments, until none is bad any more."""
    tally = Tally()
    with capture_logs() as logs:
        verdicts = Verdicts(["first", "second", "third"], tally, structlog.get_logger())
        for outcomes in [[GOOD] * 3, [BAD] * 3, [GOOD, BAD, BAD], [GOOD, GOOD, BAD], [GOOD] * 3]:
            for fragment, outcome in enumerate(outcomes):
                verdicts.judged(fragment, outcome)
    assert [log["event"] for log in logs] == ["push.excluded", "push.counts"]
    assert (logs[0]["fragment"], logs[0]["why"]) == ("first", BAD.reason)
    assert logs[1]["excluded"] == tally.anomalous == 6
