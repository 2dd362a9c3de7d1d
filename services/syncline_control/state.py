"""The one door to the database: operations go in one by one, and those that wait share a commit.

A single thread runs them in order, so operations need no locks and the event loop never waits
for a disk. A commit waits for the disk for as long as a hundred heartbeats take to compute, so
whoever comes meanwhile is committed together; what one of them refuses is undone alone. Answers
go out and bells ring after the commit. A SQLite file has one process, by its lock. Several may
share a PostgreSQL database: their transactions, too, go one by one, and each hears what the
others tell (``postgres``).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Engine
from sqlalchemy.event import listen
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from syncline_control import database, postgres
from syncline_control.notify import Bell, Together
from syncline_control.operations import membership, stragglers, sweep
from syncline_control.transaction import Transaction
from syncline_proto.errors import Overloaded, SynclineError, Unreachable
from syncline_proto.rest import Membership

P = ParamSpec("P")
T = TypeVar("T")

PENDING_MAX = 1_000
"""Operations that wait for the thread in each lane; beyond it callers are told to come back."""

POLLS_MAX = 256
"""Calls that wait for the membership to change: about one for each sync service."""

STREAMS_MAX = 256
"""Event streams open at once: about one for each page and `syncline watch`."""

BATCH_MAX = 64
"""Operations of each lane that share a commit; none waits for more before its own."""

EVENTS, MEMBERSHIP = "events", "membership"
"""What control planes on one database tell each other: which bell to ring."""

EVENT_KINDS_MAX = 200
"""Kinds that are counted apart; kinds come from outside, and each one is a metric's series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One operation, and where its answer goes."""

    act: Callable[[Transaction], Any]
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a job: a transaction to tell of and a value, or an error."""

    tx: Transaction | None = None
    value: Any = None
    error: BaseException | None = None


class State:
    """What the control plane knows.

    Invariants:
        - operations see the database as if each of them were alone;
        - whoever is told that something happened can read it: bells ring after the commit.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] | None) -> None:
        self.instance = uuid.uuid4().hex
        self._engine = engine
        self._shared = database.is_shared(engine)
        self._lock: IO[bytes] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._clock = clock
        self._now = 0.0
        """When the last transaction was; on the database's thread."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        self._first: deque[Job] = deque()
        """Wait in the lane of leases, which goes before the other."""
        self._waiting: deque[Job] = deque()
        self._turn: asyncio.Future[list[Done]] | None = None
        """The batch under way, if there is one."""
        self._closed = False
        self._review_due: float | None = None
        self._looked = stragglers.Looked()
        """When replicas' paces were last compared, and of which runs."""
        self._failing_since: float | None = None
        """Since when writes fail; on the database's thread."""
        self.membership_bell = Bell(POLLS_MAX)
        self.events_bell = Bell(STREAMS_MAX)
        self._views = Together[Membership]()
        self.event_counts: Counter[str] = Counter()

    @classmethod
    async def open(cls, path_or_url: str, *, clock: Callable[[], float] | None = None) -> Self:
        """Open the database and give every held lease a full length: we were the ones away.

        ``clock``: None for the database's own, which for a file is this machine's.

        Raises:
            ConfigError: the path or URL is wrong, or another control plane has the SQLite file.
            StoreError: the database cannot be opened or was made by another version.
        """
        state = cls(database.connect(database.database_url(path_or_url)), clock)
        loop = asyncio.get_running_loop()
        try:
            state._lock = database.only_owner(state._engine)
            await loop.run_in_executor(state._thread, database.prepare, state._engine)
            if state._shared:
                state._listener = asyncio.create_task(state._listen())
            await state.do(sweep.begin, state.instance, alone=not state._shared)
        except BaseException:
            await state.close()
            raise
        return state

    async def close(self) -> None:
        """End every wait, finish the operations under way, close the database; once is enough."""
        self.end_waits()
        if self._closed:
            return
        self._closed = True
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait({self._listener})
        while self._turn is not None:
            await asyncio.wait({self._turn})
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown()
        if self._lock is not None:
            self._lock.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def end_waits(self) -> None:
        """Answer every long poll and end every stream, now and from now on."""
        self.membership_bell.close()
        self.events_bell.close()

    async def do(
        self,
        operation: Callable[Concatenate[Transaction, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run the operation in a transaction; it is committed when this returns.

        A caller that is cancelled does not cancel the operation.

        Raises:
            Overloaded: too many operations wait.
            Unreachable: the database is away.
            StoreError: the database failed; nothing has changed.
            SynclineError: whatever the operation raises; nothing has changed.
        """
        return await self._queue(self._waiting, lambda tx: operation(tx, *args, **kwargs))

    async def do_first(
        self,
        operation: Callable[Concatenate[Transaction, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The same before everybody who uses ``do``: for what leases and rounds depend on."""
        return await self._queue(self._first, lambda tx: operation(tx, *args, **kwargs))

    async def _queue(self, lane: deque[Job], act: Callable[[Transaction], T]) -> T:
        if len(lane) >= PENDING_MAX:
            raise Overloaded("Too many requests wait for the database; try again.")
        job = Job(act=act, answer=asyncio.get_running_loop().create_future())
        lane.append(job)
        self._take_turn()
        return await asyncio.shield(job.answer)

    @property
    def writes_fail(self) -> bool:
        """Whether the database has refused a write, and taken none since."""
        return self._failing_since is not None

    async def review_leases(self) -> float:
        """Mark what has run out; return the seconds until leases should be looked at again."""

        def review(tx: Transaction) -> tuple[float, float, stragglers.Looked]:
            every_s = sweep.review_leases(tx, self.instance)
            return tx.now, every_s, stragglers.look(tx, self._looked)

        now, every_s, self._looked = await self.do_first(review)
        self._review_due = now + every_s
        return every_s

    async def membership(self, run: str | None, after: int | None, wait_s: float) -> Membership:
        """Return the membership as soon as its version is not ``after``, or after ``wait_s``."""
        ends = time.monotonic() + wait_s
        while True:
            ring = self.membership_bell.listen()
            read = partial(self.do_first, membership.view, run)
            view = await self._views.read((ring, run), read)
            if view.version != after:
                return view
            if not await self.membership_bell.heard(ring, ends - time.monotonic()):
                return view

    def _take_turn(self) -> None:
        """Send those who wait to the database's thread, unless it is at work."""
        if self._turn is not None or not (self._first or self._waiting):
            return
        lanes = (self._first, self._waiting)
        batch = [lane.popleft() for lane in lanes for _ in range(min(len(lane), BATCH_MAX))]
        loop = asyncio.get_running_loop()
        self._turn = loop.run_in_executor(self._thread, self._transact, batch)
        self._turn.add_done_callback(partial(self._settle, batch))

    def _transact(self, batch: Sequence[Job], *, again: bool = True) -> list[Done]:
        """Do a batch in one transaction; runs on the database's thread.

        While writes fail (a full disk) renewals are lost and reads go on. That is our delay, not
        the replicas': nobody may lose a lease for it. ``again``: what may pass is tried twice.
        """
        flushed: list[bool] = []
        its_turn = False
        try:
            with Session(self._engine, expire_on_commit=False) as session, session.begin():
                now = self._begin(session)
                its_turn = True
                late_s = max(0.0, now - (self._review_due or now))
                late_s = max(late_s, now - (self._failing_since or now))
                listen(session, "after_flush", partial(_note_what_is_written, flushed))
                done = [
                    _act(job, Transaction(session=session, now=now, late_s=late_s), flushed)
                    for job in batch
                ]
                if self._shared:
                    self._tell_others(session, done)
        except SQLAlchemyError as error:
            if its_turn and len(batch) > 1:  # nothing was kept; who can go on alone shall
                return self._each(batch)
            if its_turn and again and postgres.passes(error):
                return self._transact(batch, again=False)
            if self._failing_since is None:
                self._failing_since = self._now
            refused: SynclineError = database.refused(self._engine, error)
            if not its_turn:
                refused = Unreachable(refused.message)
            return [Done(error=refused) for _ in batch]
        if flushed:
            self._failing_since = None
        return done

    def _each(self, batch: Sequence[Job]) -> list[Done]:
        """Do each alone; where nobody answers, no more of them are tried."""
        done: list[Done] = []
        for job in batch:
            done += self._transact([job])
            if isinstance(done[-1].error, Unreachable):
                return done + [done[-1]] * (len(batch) - len(done))
        return done

    def _begin(self, session: Session) -> float:
        """Wait for our turn at the database, and return what time it is, since 1970."""
        now = postgres.take_turn(session) if self._shared else time.time()
        self._now = self._clock() if self._clock else now
        return self._now

    def _tell_others(self, session: Session, done: Sequence[Done]) -> None:
        """Let the other control planes ring their bells, once this transaction is committed."""
        acts = [one.tx for one in done if one.tx is not None]
        rings = [EVENTS] * any(tx.kinds for tx in acts)
        rings += [MEMBERSHIP] * any(tx.membership_changed for tx in acts)
        if rings:
            postgres.tell(session, [self.instance, *rings])

    async def _listen(self) -> None:
        """Ring our bells for what other control planes changed."""

        def heard(told: list[str]) -> None:
            if told and told[0] == self.instance:
                return
            if not told or EVENTS in told:
                self.events_bell.ring()
            if not told or MEMBERSHIP in told:
                self.membership_bell.ring()

        await postgres.listen(self._engine, heard)

    def _settle(self, batch: Sequence[Job], turn: asyncio.Future[list[Done]]) -> None:
        """Answer everybody, whatever became of the batch, and let those who wait go on."""
        self._turn = None
        fault = turn.exception()
        outcomes = turn.result() if fault is None else [Done(error=fault) for _ in batch]
        try:
            for job, done in zip(batch, outcomes, strict=True):
                if done.error is not None:
                    job.answer.set_exception(done.error)
                    job.answer.exception()  # whoever asked may have hung up; that is no fault
                    continue
                job.answer.set_result(done.value)
                if done.tx is not None:
                    self._tell(done.tx)
        finally:
            self._take_turn()

    def _tell(self, tx: Transaction) -> None:
        for kind in tx.kinds:
            known = kind in self.event_counts or len(self.event_counts) < EVENT_KINDS_MAX
            self.event_counts[kind if known else "other"] += 1
        if tx.kinds:
            self.events_bell.ring()
        if tx.membership_changed:
            self.membership_bell.ring()


def _note_what_is_written(flushed: list[bool], session: Session, *_: object) -> None:
    """Rows that are set to what they are, as a look leaves most of them, are not written at all."""
    if session.new or session.deleted or any(map(session.is_modified, session.dirty)):
        flushed.append(True)


def _act(job: Job, tx: Transaction, flushed: list[bool]) -> Done:
    """Do one operation of a batch; if it fails, undo what it did and nothing else.

    Raises:
        SQLAlchemyError: the database refuses; the batch cannot go on.
    """
    before = len(flushed)
    try:
        with tx.session.begin_nested():
            value = job.act(tx)
            tx.forget_old_events()
    except SQLAlchemyError:
        raise
    except Exception as error:  # the outermost loop of this thread: whoever asked is told
        del flushed[before:]
        return Done(error=error)
    return Done(tx=tx, value=value)
