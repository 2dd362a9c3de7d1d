"""What a fragment holds: parameters, momentum, one more array, its files, and what is published.

The third array has two lives. Between rounds it holds the parameters as they are sent, so that a
pull only copies; once a round's first pushes are folded it is the accumulator, and pulls encode
what they are asked for. The outer step leaves the new parameters in it and the old ones become the
third, so memory is three times the parameters whatever the number of replicas. The first pushes
wait for each other as they came: a few that are all of a round are stepped unfolded (``core.few``).

With differences as downlink what is published follows from what was published before, so it has an
array of its own, of bf16, and the newest difference is kept: 3.75 times the parameters, and at most
4.25 while slow readers have older ones. Nothing is sent from the parameters then: they are stepped
where they lie, by what is unfolded. An older revision is read from its file. Who counts, and when a
round ends, is decided elsewhere.

A round is on the disk before it is published: while it is written it is announced, and who pulls it
soon has all but its end. Or it is written behind that (``behind``), and the next outer step waits
for it: parameters and momentum stay as they are while they are written, and only the newest
revision is ever without its file. Pushes fold into the third array meanwhile. Older files are
removed behind, either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from syncline_proto.codec import Float32, UInt16, advance, publish
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.behind import Behind
from syncline_sync.core import direction, few, merge
from syncline_sync.core.radial import Radii
from syncline_sync.core.record import Closing, Kind, Saved
from syncline_sync.core.squares import Squares
from syncline_sync.disk import Disk
from syncline_sync.entries import Entry, new_momentum, new_parameters, new_published
from syncline_sync.lull import Lull
from syncline_sync.pool import P, T, compute
from syncline_sync.published import Published
from syncline_sync.shelf import Shelf
from syncline_sync.sources import Difference, Plain
from syncline_sync.stored import (
    Stored,
    codec_of_saved,
    is_sent_as_it_is,
    sent_as_bits,
    sent_of,
)

ToAdvance: TypeAlias = tuple[UInt16 | None, memoryview | None]
"""The published value, where a difference is to take it on, and memory to tell that in."""

Reports = Callable[[merge.Outcome | None], Sequence[str]]
"""What a round's commit keeps for the control plane, once its outcome is known."""

PAIR = 2
"""Pushes that are folded at once, where they cannot be stepped as they came."""


class Holding:
    """One fragment's. But for ``written`` and ``pin`` its methods are called one after another."""

    def __init__(
        self,
        *,
        number: int,
        edges: Sequence[int],
        stored: Stored,
        pool: ThreadPoolExecutor,
        disk: Disk,
        lull: Lull,
        commit_seconds: Callable[[], AbstractContextManager[object]],
        fail: Callable[[BaseException], None],
    ) -> None:
        """``edges`` say where each tensor begins in the flat vector, and where the last one ends.

        ``pool`` is for arithmetic, ``disk`` for what is written; what may, waits for ``lull``.
        ``commit_seconds`` measures what is done in its block; ``fail`` is told what went wrong
        when something was written behind.
        """
        self.revisions = Shelf(f"fragment {number}: revision")
        self.gradients = Shelf(f"fragment {number}: gradient step")
        self._edges, self._numel = edges, edges[-1]
        self._store, self._pool, self._disk = stored.store, pool, disk
        self._behind = Behind(stored.store, disk, lull, fail)
        self._commit_seconds = commit_seconds
        self._parameters: Float32 = stored.parameters
        self._momentum: Float32 = stored.momentum
        # The third array is one of these two, according to the life it is in, or not made yet.
        self._spare: Float32 | None = stored.spare
        self._accumulator: Float32 | None = stored.offer[1] if stored.offer else None
        self._first: list[tuple[merge.Weighed, Callable[[], None]]] = []
        """The round's first pushes, which are not in the accumulator yet; there is none then."""
        self._few: few.Few | None = None
        """These, if they may be stepped as they came."""
        self._squares: Squares | None = None
        """The accumulator's, as a round was begun; None where it has changed since."""
        self._radii: Radii | None = None
        """Of the pushes in the accumulator, where it holds their directions."""
        self._sent: UInt16 | None = stored.sent
        for value in stored.revisions:
            self.revisions.put(value.saved.revision, value)
        for value in stored.gradients:
            self.gradients.put(value.saved.gradient_step, value)

    def be_in(self, phase: int) -> None:
        """The run's synchronous phase is this one: who waits for anything of another is told."""
        for shelf in (self.revisions, self.gradients):
            shelf.be_in(phase)

    def pin(self, revision: int, path: Path) -> Entry:
        """Keep a revision's file as ``path``, too; from any thread. As ``FragmentStore.pin``."""
        return self._store.pin(revision, path)

    @property
    def lingers(self) -> bool:
        """Whether a push waits for ``fold_first``."""
        return bool(self._first)

    @property
    def is_full(self) -> bool:
        """Whether as many wait as may: they are folded, unless the round closes with them."""
        return len(self._first) == few.FEW_MAX or (len(self._first) >= PAIR and self._few is None)

    async def fold(
        self, push: merge.Weighed, release: Callable[[], None], *, is_radial: bool = False
    ) -> None:
        """Add a push to the round's sum: rescale what is in it, then add ``weight`` * D.

        ``release`` is called once its bytes are not needed any more. A round's first ones may wait
        for ``fold_first``, or for what follows, before that.

        ``is_radial``, the same for all of a round: or its directions (``core.radial``).
        """
        if self._accumulator is None and not is_radial and not self.is_full:
            self._first.append((push, release))
            self._few = few.few_of([push for push, _ in self._first])
            return
        await self.fold_first()
        is_first = self._accumulator is None
        sum_ = await self._opened()
        if is_first:
            assert is_radial, "others wait for more"
            self._radii = Radii.none(self._edges)
        self._squares = None
        take = self._radii.fold if self._radii else merge.fold
        await self._compute(take, sum_, push.payloads, push.weight, push.rescale, is_first=is_first)
        release()

    async def fold_first(self) -> None:
        """Begin the round's sum with the pushes that wait for that, if any do."""
        if self._first:
            sum_, self._radii = await self._opened(), None
            pushes = [push for push, _ in self._first]
            self._squares = await self._compute(merge.begin, sum_, pushes)
            self._forget_first()

    async def place(self, push: Sequence[merge.Payload]) -> None:
        """Put a push in the place of the round's sum: it is the parameters to be."""
        assert not self._first, "an offer is of a round of its own"
        await self._compute(merge.place, await self._opened(), push)

    async def keep_offer(self, saved: Saved) -> None:
        """Store what was placed: it waits for other fragments', over a restart too.

        Raises:
            StoreError: the disk refuses.
        """
        assert self._accumulator is not None, "nothing was placed"
        await self.written()
        await self._disk.do(self._store.commit_offer, saved, self._accumulator)

    def forget(self) -> None:
        """The round is given up, with all that was folded."""
        self._forget_first()
        if self._accumulator is not None:
            self._spare, self._accumulator, self._squares = self._accumulator, None, None
            self._radii = None

    async def finish(self, closing: Closing, reports: Reports) -> None:
        """The end of a round: outer step, commit, and only then publication; or the other way.

        ``reports``, asked for after the outer step, go with the commit.

        Raises:
            StoreError: the disk refuses this round, or the one before; nothing is published.
        """
        pushes = self._unfolded(closing)
        if pushes is None:
            await self.fold_first()
        elif self._sent is None or not closing.saved.is_by_difference:  # else it is in place
            await self._opened()  # now: ``_to_advance`` has who reads from there go on to a file
        await self.written()
        if closing.kind is Kind.GRADIENT:
            await self._finish_gradient(closing, reports)
            return
        to_advance = await self._to_advance(closing)
        outcome, told = await self._step(closing, pushes, to_advance)
        del pushes  # its pushes are not to stay while this is written
        difference = None if told is None else Difference(told)
        if closing.saved.is_by_difference and to_advance[0] is None:
            await self._publish_anew()
        await self._hold(self.revisions)
        kept = reports(outcome)
        value = await self._made(closing.saved, difference)
        if closing.behind:
            await self._behind.mark()
            self._publish(value)
            self._behind.do(self._commit_and_sweep, closing.saved, kept)
        else:
            self.revisions.announce(closing.saved.revision, value, time.monotonic())
            await self._disk.do(self._commit, closing.saved, kept)
            self._publish(value)
            self._behind.do(self._store.sweep)

    async def written(self) -> None:
        """Wait until everything that is published is on the disk, and nothing is done there.

        Raises:
            StoreError: the disk has refused it.
        """
        await self._behind.done()

    def catch_up(self) -> None:
        """Nothing is published before it is on the disk from now on; what is not yet, soon is."""
        self._behind.unmark()

    async def end(self) -> None:
        """Nothing more will come: see all on the disk, where it takes it."""
        await self._behind.end()

    async def _made(self, saved: Saved, difference: Difference | None) -> Published:
        """The new revision as it is to be pulled; the one before is read from its file."""
        codec = codec_of_saved(saved)
        if self._sent is not None:
            source = sent_as_bits(self._sent)
        else:
            await self._read_newest_from_file()
            source, self._spare = await self._compute(sent_of, self._parameters, codec, self._spare)
        value = Published(saved, codec, source, difference, is_announced=True)
        value.sum_up(self.revisions.asked(2 * self._numel), self._pool)  # and of the difference
        return value

    def _publish(self, value: Published) -> None:
        value.publish(time.monotonic())
        self.revisions.put(value.saved.revision, value)

    def _forget_first(self) -> None:
        first, self._first, self._few = self._first, [], None
        for _, release in first:
            release()

    async def _opened(self) -> Float32:
        """The accumulator; from now on nothing is sent from it."""
        if self._accumulator is None:
            for _, value in self.revisions.values[-1:]:
                if not (is_sent_as_it_is(value.codec) or value.saved.is_by_difference):
                    await value.move(Plain(self._parameters, value.codec))
            spare, self._spare = self._spare, None
            self._accumulator = new_parameters(self._numel) if spare is None else spare
        return self._accumulator

    def _unfolded(self, closing: Closing) -> few.Few | None:
        """The pushes that wait, if the step needs no sum, and waits for nothing: they hold room."""
        found, of_sum = self._few, closing.direction_scale is not None or not self._behind.is_done
        if found is None or of_sum or closing.kind is not Kind.PSEUDO_GRADIENT:
            return None
        return found if found.is_short(closing.total_weight, closing.outer) else None

    async def _to_advance(self, closing: Closing) -> ToAdvance:
        """What was offered, and the first value of all, is published whole: nothing is lost."""
        if not closing.saved.is_by_difference:
            self._sent = None
            return None, None
        await self._read_newest_from_file()
        unread: memoryview | None = None
        for _, value in self.revisions.values:
            memory = value.retire()
            unread = unread if memory is None else memory
        return (None, None) if closing.kind is Kind.PARAMETERS else (self._sent, unread)

    async def _step(
        self, closing: Closing, pushes: few.Few | None, to_advance: ToAdvance
    ) -> tuple[merge.Outcome | None, memoryview | None]:
        """Change parameters and momentum as the round says, and take what is published to them.

        The outcome is None if the round has no sum. The difference is None where no difference can
        tell what the new values are.
        """
        accumulator, self._accumulator = self._accumulator, None
        (sent, unread), told = to_advance, None
        if pushes is not None:
            return await self._step_few(pushes, accumulator, closing, to_advance)
        if accumulator is None:
            if sent is not None:
                told = await self._compute(advance, sent, self._parameters, unread)
            return None, told
        if closing.kind is Kind.PARAMETERS:
            before = self._parameters
            self._parameters, self._spare = accumulator, before if before.size else None
            self._momentum = new_momentum(self._numel)
            return None, None
        arrays = self._parameters, self._momentum, accumulator
        weight, outer = closing.total_weight, closing.outer
        cosine = await self._turn(accumulator, closing)
        carry, squares, self._squares = closing.carry, self._squares, None
        if sent is None:
            outcome = await self._compute(merge.outer_step, *arrays, weight, outer, carry, squares)
        else:
            outcome, told = await self._compute(
                merge.step_and_advance, *arrays, weight, outer, sent, unread, carry, squares
            )
        self._keep(outcome, accumulator)
        return replace(outcome, cosine=cosine), told

    async def _step_few(
        self, pushes: few.Few, out: Float32 | None, closing: Closing, to_advance: ToAdvance
    ) -> tuple[merge.Outcome, memoryview | None]:
        """``_step`` of a round of a few: in place, or into ``out``."""
        (sent, unread), told = to_advance, None
        arrays = self._parameters, self._momentum
        weight, outer, carry = closing.total_weight, closing.outer, closing.carry
        if sent is None:
            assert out is not None, "it was opened"
            given = *arrays, out, weight, outer, carry
            outcome = await self._compute(few.outer_step, pushes, *given)
            self._keep(outcome, out)
        else:
            outcome, told = await self._compute(
                few.step_and_advance, pushes, *arrays, weight, outer, sent, unread, carry
            )
        self._forget_first()
        return outcome, told

    def _keep(self, outcome: merge.Outcome, out: Float32) -> None:
        """The new parameters are in ``out``, if they changed; the other array is spare."""
        if outcome.clip:
            self._parameters, out = out, self._parameters
        self._spare = out

    async def _turn(self, accumulator: Float32, closing: Closing) -> float | None:
        """Whatever is done with the sum's length and direction before the outer step."""
        radii, self._radii = self._radii, None
        if radii is not None:
            await self._compute(radii.lengthen, accumulator)
        rules, scale = closing.outer.direction, closing.direction_scale
        if scale is None:
            return None
        self._squares = None
        return await self._compute(
            direction.correct, accumulator, self._momentum, scale, self._edges, rules
        )

    async def _publish_anew(self) -> None:
        """Publish the parameters whole, in memory of their own from now on."""
        self._sent = new_published(self._numel) if self._sent is None else self._sent
        await self._compute(publish, self._sent, self._parameters)

    async def _read_newest_from_file(self) -> None:
        """From now on; the array that it is sent from is to change."""
        for _, value in self.revisions.values[-1:]:
            await value.move(self._store.filed(value.saved, value.codec))

    def _commit(self, saved: Saved, reports: Sequence[str]) -> None:
        with self._commit_seconds():
            self._store.commit(saved, self._parameters, self._momentum, self._sent, reports)

    def _commit_and_sweep(self, saved: Saved, reports: Sequence[str]) -> None:
        self._commit(saved, reports)
        self._store.sweep()

    async def _finish_gradient(self, closing: Closing, reports: Reports) -> None:
        gradient, self._accumulator, self._squares = self._accumulator, None, None
        if gradient is None:
            gradient = np.zeros(self._numel, np.float32)
        else:
            await self._compute(merge.mean, gradient, closing.total_weight)
        await self._hold(self.gradients)
        await self._disk.do(self._store.commit_gradient, closing.saved, gradient, reports(None))
        for _, value in self.gradients.values[-1:]:
            before = self._store.filed(value.saved, value.codec, is_gradient=True)
            await value.move(before)
        source, _ = sent_of(gradient, pb.CODEC_FP32, None)
        value = Published(closing.saved, pb.CODEC_FP32, source)
        self.gradients.put(closing.saved.gradient_step, value)

    async def _hold(self, shelf: Shelf) -> None:
        """What a commit replaces is removed: whoever reads its file goes on to."""
        for _, value in shelf.values:
            await value.hold(self._disk)

    async def _compute(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await compute(self._pool, work, *args, **kwargs)
