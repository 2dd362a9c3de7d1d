"""One fragment's decisions, moved by a test one transition after another, with time by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import ClosedBy, Closing, Judgement, Kind
from syncline_testing.pure import whole_push

DEADLINE_S = 100.0


def rules(**given: Any) -> RunSettings:
    given.setdefault("min_replicas", 2)
    given.setdefault("timeouts", {"round_deadline": DEADLINE_S})
    return RunSettings.model_validate(given)


class World:
    """A fragment at revision 0, its members, and the clock."""

    def __init__(self, *replicas: str, **given: Any) -> None:
        self.settings = rules(**given)
        self.core = Fragment(self.settings)
        self.now_s = 0.0
        self.seqs: dict[str, int] = {}
        self.members = dict.fromkeys(replicas, 1)
        self.came: set[str] = set()
        """Who has opened the run."""
        self.adopt()
        assert self.push(replicas[0], kind=Kind.PARAMETERS, base=None).sets
        self.closes(ClosedBy.OFFER)

    def adopt(self, running: bool = True, **changed: int | None) -> tuple[str, ...]:
        """Replicas come (an incarnation), and open the run, or go (None)."""
        self._change(changed)
        self.came |= self.members.keys()
        return self.core.adopt(self.now_s, self.members, self.settings, running, self.came)

    def refuse(self, **changed: int | None) -> None:
        """As ``adopt``, but who comes does not open the run: another model, perhaps."""
        self._change(changed)
        self.core.adopt(self.now_s, self.members, self.settings, True, self.came)

    def _change(self, changed: Mapping[str, int | None]) -> None:
        self.members = {r: i for r, i in {**self.members, **changed}.items() if i is not None}

    def push(self, replica: str, **given: Any) -> Judgement:
        given.setdefault("incarnation", self.members.get(replica, 1))
        given.setdefault("base", self.core.saved.revision)
        if "seq" not in given:
            given["seq"] = self.seqs[replica] = self.seqs.get(replica, 0) + 1
        return self.core.judge(self.now_s, whole_push(replica, **given))

    def gradient(self, replica: str, step: int, **given: Any) -> Judgement:
        return self.push(replica, kind=Kind.GRADIENT, gradient_step=step, base=None, **given)

    def waits(self) -> None:
        assert self.core.due(self.now_s) is None

    def closes(self, closed_by: ClosedBy) -> Closing:
        assert self.core.due(self.now_s) == closed_by
        return self.core.close(closed_by)

    def round_of_two(self) -> Closing:
        """A round that closes with a and b, who are its quorum."""
        for replica in ("a", "b"):
            assert self.push(replica).verdict == pb.VERDICT_ACCEPTED
        return self.closes(ClosedBy.QUORUM)

    def round(self, *replicas: str) -> Closing:
        for replica in replicas:
            assert self.push(replica).verdict == pb.VERDICT_ACCEPTED
        return self.closes(ClosedBy.EVERYONE)
