"""Pushes on their way in: rank by rank, chunk by chunk, until one is whole.

Holds encoded bytes only, within a budget: a push asks for room for all its ranks at its first
header, and one that finds none waits its turn instead of failing. One whose ranks do not come is
dropped, so that it cannot hold room for ever. Decides nothing about rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from syncline_proto.codec import codec_of
from syncline_proto.errors import InvalidRequest, SynclineError, Unreachable
from syncline_proto.layout import Layout
from syncline_proto.spans import NOWHERE
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.core.record import Judgement
from syncline_sync.shard import Shard
from syncline_sync.staged import PushKey, Staged

REFUSED_MAX = 8
"""Ranks of a push of which it is kept why they were refused."""

REFUSED_PUSHES_MAX = 2
"""Of a (fragment, replica), of which it is kept though no rank of them is in."""


@dataclass(slots=True)
class _Refused:
    """The ranks of a push whose headers were refused."""

    why: dict[int, str] = field(default_factory=dict[int, str])
    """By rank, of those that have not come again."""
    beside: int = 0
    """Refusals of which that is not kept."""


class _Answered(NamedTuple):
    """A judgement, and the number of the push that it is of."""

    number: tuple[int, int]
    judgement: Judgement


class _Left(NamedTuple):
    """The number of a push that was in the budget's line, and its place there."""

    number: tuple[int, int]
    place: int


class Staging:
    """The pushes of one run that are not whole yet, or whole and not yet answered."""

    def __init__(self, run: str, layout: Layout, budget: Budget) -> None:
        self._run, self._layout, self._budget = run, layout, budget
        self._is_over = False
        """Nobody looks any more whether pushes stand still: none is taken."""
        self._staged: dict[PushKey, Staged] = {}
        self._by_whose: dict[tuple[int, str], dict[tuple[int, int], Staged]] = {}
        """The same by whose they are, then by number; of the first there may be thousands."""
        self._answered: dict[tuple[int, str], _Answered] = {}
        """The last judgement, by whose it is, for a rank that did not hear it."""
        self._left: dict[tuple[int, str], _Left] = {}
        """By whose it is: a client whose call is cut while it waits for room asks again."""
        self._refused: dict[tuple[int, str], dict[tuple[int, int], _Refused]] = {}
        """By whose they are, then by number: the last to be refused is the last."""
        self._heard_by_rank: dict[tuple[str, int], dict[int, float]] = {}
        """When each rank of a (replica, incarnation) last sent something, of any fragment."""

    def answered(self, header: pb.PushHeader) -> Judgement | None:
        """The judgement of a push that this process has answered already, as a DUPLICATE."""
        key = PushKey.of(header)
        known = self._answered.get(key.whose)
        if known is None or known.number != key.number:
            return None
        was = known.judgement
        return replace(was, verdict=pb.VERDICT_DUPLICATE, judged=was.first)

    def answer(self, header: pb.PushHeader, judgement: Judgement) -> bool:
        """Answer a push before its values come, on all ranks alike; False if it is on its way in.

        Or if the replica has begun a newer push of the fragment.
        """
        key = PushKey.of(header)
        known = self._answered.get(key.whose)
        if any(other >= key.number for other in self._by_whose.get(key.whose, ())):
            return False
        if known is not None and known.number > key.number:
            return False
        self._drop_older(key)
        self._answered[key.whose] = _Answered(key.number, judgement)
        return True

    def join(self, shard: Shard) -> Staged:
        """Find or make the push that a rank's shard belongs to.

        Receive the shard if the push ``expects`` it, once there is ``room``; and ``leave`` it,
        however that ends. A rank that begins anew replaces what it has sent before.

        Raises:
            InvalidRequest: ranks disagree, or overlap, or the replica has begun a newer push of
                the fragment; the field is named.
            Overloaded: too many pushes wait for room.
            Unreachable: the run has been put away meanwhile.
        """
        if self._is_over:
            raise away()
        header = shard.header
        key = PushKey.of(header)
        staged = self._staged.get(key)
        if staged is None:
            if any(other > key.number for other in self._by_whose.get(key.whose, ())):
                raise InvalidRequest("seq: a newer push of this fragment has begun.")
            staged = self._begin(key, header)
        try:
            staged.check_agrees(header)
            before = staged.shards.get(header.rank)
            if staged.submitted or (before is not None and before.is_like(shard)):
                shard.extent = NOWHERE  # it may be large, and the rank may ask often
            else:
                staged.claim(shard, self._numel(key))
        except InvalidRequest as error:
            self.refuse(header, error)
            raise
        self._refusals(key).why.pop(header.rank, None)
        return staged

    def refuse(self, header: pb.PushHeader, why: InvalidRequest) -> None:
        """A rank was refused at its header; it may come again, and the others wait for that.

        Call it only for a member's: what is kept of it is bounded by those.
        """
        key = PushKey.of(header)
        pushes = self._refused.setdefault(key.whose, {})
        told = pushes[key.number] = pushes.pop(key.number, None) or _Refused()
        if header.rank in told.why or len(told.why) < REFUSED_MAX:
            told.why[header.rank] = why.message
        else:
            told.beside += 1
        # Any number may be in a header that is refused: it hides no push whose ranks wait.
        idle = [other for other in pushes if other not in self._by_whose.get(key.whose, ())]
        for other in idle[:-REFUSED_PUSHES_MAX]:
            del pushes[other]

    def note(self, staged: Staged, shard: Shard, now_s: float) -> None:
        """A rank has sent something: its replica's pushes that lack it are alive."""
        staged.heard_s = now_s
        self._heard_by_rank.setdefault(staged.key.life, {})[shard.header.rank] = now_s

    def add(self, staged: Staged, shard: Shard, now_s: float) -> bool:
        """Put a whole shard into its push; True if that made the push whole.

        Whoever is told so must see that it is judged: nothing else answers it from now on.
        """
        assert shard.whole and staged.expects(shard)
        self.note(staged, shard, now_s)
        staged.shards[shard.header.rank] = staged.coming.pop(shard.header.rank)
        staged.submitted = staged.whole
        return staged.submitted

    def leave(self, staged: Staged, shard: Shard) -> None:
        """A rank's call has ended: forget its shard if that is not whole, and an empty push.

        A push that has had no room yet keeps its place in the line, for when it is sent again. One
        that had some and left begins behind the others: who sends nothing holds them up once only.
        """
        if staged.expects(shard):
            staged.discard(shard.header.rank)
        if not staged.coming and not staged.shards and self._staged.get(staged.key) is staged:
            if not staged.reservation.granted.done():
                self._left[staged.key.whose] = _Left(staged.key.number, staged.reservation.place)
            self.drop(staged, InvalidRequest("push: its ranks have ended their calls."))

    def settle(self, staged: Staged, judgement: Judgement) -> None:
        """Answer every rank of a push, and forget its bytes."""
        self.tell(staged, judgement)
        self.release(staged)

    def tell(self, staged: Staged, judgement: Judgement) -> None:
        """Answer every rank of a push; its bytes stay until ``release``.

        It is on its way no more: its replica may send another, be it newer or older.
        """
        self._answered[staged.key.whose] = _Answered(staged.key.number, judgement)
        if not staged.answer.done():
            staged.answer.set_result(judgement)
        self._unlist(staged)

    def release(self, staged: Staged) -> None:
        """Forget the bytes of a push that is to be answered, or has been."""
        if staged.submitted:
            # All of it was in, and nobody reads it now. A thread may still write to one cut off.
            for shard in staged.shards.values():
                shard.free()
        self._give_back(staged)

    def drop(self, staged: Staged, why: SynclineError) -> None:
        """Forget a push and free its room; ranks that wait for its answer get ``why``."""
        if not staged.answer.done():
            staged.answer.set_exception(why)
            staged.answer.exception()  # nobody may be waiting, and that is no fault
        self._forget(staged)

    def end(self) -> None:
        """The run is put away: what is not whole is forgotten, and nothing more is taken."""
        self._is_over = True
        for staged in list(self._staged.values()):
            if not staged.submitted:
                self.drop(staged, away())

    def drop_stalled(self, now_s: float, still_s: float, hold_s: float) -> None:
        """Drop the pushes that stand still, and those that crawl where others wait for room.

        A push stands still when its missing ranks have sent nothing for ``still_s``. Ranks send one
        fragment after another, and one may be far ahead of the other: what a rank sends of another
        fragment counts for all pushes that lack it. It crawls when it has had room for ``hold_s``,
        after which no round waits for it. Time in line does not count. Call it often.
        """
        lives = {staged.key.life for staged in self._staged.values()}
        self._heard_by_rank = {
            life: heard for life, heard in self._heard_by_rank.items() if life in lives
        }
        for staged in list(self._staged.values()):
            if staged.submitted or not staged.reservation.granted.done():
                continue
            staged.granted_s = min(staged.granted_s, now_s)
            if self._has_stood_still(staged, now_s - still_s):
                self.drop(staged, self._not_come(staged, still_s))
                self._refused.get(staged.key.whose, {}).pop(staged.key.number, None)  # told now
            elif staged.granted_s + hold_s <= now_s and self._budget.is_wanted_beside(
                staged.reservation
            ):
                why = f"push: not whole {hold_s:g} s after it had room, and others wait for that"
                self.drop(staged, Unreachable(f"{why}; send it again."))

    def _has_stood_still(self, staged: Staged, since_s: float) -> bool:
        """Whether a push with room has had nothing since, nor its missing ranks sent any other."""
        if max(staged.granted_s, staged.heard_s) > since_s:
            return False
        ranks = self._heard_by_rank.get(staged.key.life, {})
        return not any(at_s > since_s and staged.lacks(rank) for rank, at_s in ranks.items())

    def fence(self, fenced: Callable[[int, str, int], Judgement | None]) -> None:
        """Answer unfinished pushes of replicas that do not hold their lease (any more).

        ``fenced`` (fragment, replica, incarnation) is the answer to one that does not.
        """
        for staged in list(self._staged.values()):
            whose, incarnation = staged.key.whose, staged.key.incarnation
            refusal = None if staged.submitted else fenced(*whose, incarnation)
            if refusal is not None:
                self.settle(staged, refusal)

        def holds(whose: tuple[int, str], number: tuple[int, int]) -> bool:
            incarnation, _ = number
            return fenced(*whose, incarnation) is None

        self._answered = {w: known for w, known in self._answered.items() if holds(w, known.number)}
        self._left = {w: left for w, left in self._left.items() if holds(w, left.number)}
        for whose, pushes in list(self._refused.items()):
            kept = {number: told for number, told in pushes.items() if holds(whose, number)}
            if kept:
                self._refused[whose] = kept
            else:
                del self._refused[whose]

    def _refusals(self, key: PushKey) -> _Refused:
        return self._refused.get(key.whose, {}).get(key.number) or _Refused()

    def _not_come(self, staged: Staged, still_s: float) -> SynclineError:
        """What the ranks of a push are told that stood still, because others did not come."""
        refused = self._refusals(staged.key)
        for rank, why in refused.why.items():
            if staged.lacks(rank):
                return InvalidRequest(
                    f"push: rank {rank} of {staged.header.ranks} was refused, and did not come "
                    f"again for {still_s:g} s: {why}"
                )
        return Unreachable(staged.not_come(still_s, refused.beside))

    def _begin(self, key: PushKey, header: pb.PushHeader) -> Staged:
        """Make a push that asks for room; it comes in place of its replica's older ones.

        Raises:
            Overloaded: too many pushes wait for room; nothing has changed.
        """
        codec = codec_of(header.codec)
        size = codec.size(self._numel(key)) + codec.seam * (header.ranks - 1)
        reservation = self._budget.ask(self._run, size, self._place(key), header.replica)
        self._left.pop(key.whose, None)
        self._drop_older(key)
        answer: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()
        staged = self._staged[key] = Staged(key, header, reservation, answer)
        self._by_whose.setdefault(key.whose, {})[key.number] = staged
        return staged

    def _forget(self, staged: Staged) -> None:
        self._unlist(staged)
        self._give_back(staged)

    def _unlist(self, staged: Staged) -> None:
        if self._staged.get(staged.key) is staged:
            del self._staged[staged.key]
            theirs = self._by_whose[staged.key.whose]
            del theirs[staged.key.number]
            if not theirs:
                del self._by_whose[staged.key.whose]

    def _give_back(self, staged: Staged) -> None:
        if staged.is_reserved:
            staged.is_reserved = False
            self._budget.give_back(staged.reservation)
            staged.coming, staged.shards, staged.calls = {}, {}, {}

    def _drop_older(self, key: PushKey) -> None:
        """A replica that starts a push of a fragment has given up its unfinished older ones."""
        for staged in list(self._by_whose.get(key.whose, {}).values()):
            if staged.key < key and not staged.submitted:
                self.drop(staged, InvalidRequest("seq: a newer push has replaced this one."))

    def _place(self, key: PushKey) -> int | None:
        """Where in the line this push was before, if its replica has not begun another since."""
        left = self._left.get(key.whose)
        return left.place if left is not None and left.number == key.number else None

    def _numel(self, key: PushKey) -> int:
        return self._layout.fragments[key.fragment].numel


def away() -> Unreachable:
    """What a push of a run is told that is put away."""
    return Unreachable("push: the run is being put away; send it again.")
