"""A replica as the protocol wants it, with noise for progress: it pushes, pulls, never gives up.

Whatever fails is done again: a push under the same seq with the same bytes. After STALE the same
progress goes out under the next seq; with a life that has ended its progress ends, too. What came
late and counts is sent again to a service that has started anew. One of the replicas has two ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

import grpc
import httpx
import numpy as np

from chaos.calls import CHANNEL, may_be_repeated, parts_of, pulled
from chaos.late import Late, LatePushes
from chaos.ledger import COUNTED, Ledger, Sent
from chaos.plan import RUN, Anchor, End, Plan
from chaos.progress import Push, offered, progressed
from chaos.ranks import pushed_by
from chaos.reference import followed
from syncline.core.feedback import Residuals
from syncline_proto.codec import crc32c
from syncline_proto.owners import owners
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.service import code_of, pushed

PUSH_S, PULL_S, AGAIN_S = 10.0, 2.0, 0.02
NAP_S = 1.0
"""The longest that the slow replica waits for others' rounds: they may be down, too."""

NAPS, ROUNDS = 0.5, (0.7, 0.2, 0.1)
"""How likely it waits for some, and for one, two or three, which is too many to count late."""


class Replica:
    """One replica, with all its lives."""

    def __init__(
        self, number: int, plan: Plan, ledger: Ledger, control: str, syncs: Sequence[str]
    ) -> None:
        """``syncs``: the addresses of the sync services, each at its index."""
        self.name = f"replica-{number}"
        self._number, self._plan, self._ledger = number, plan, ledger
        self._http = httpx.AsyncClient(base_url=f"{control}/v1", timeout=10.0, trust_env=False)
        self._channels = [grpc.aio.insecure_channel(sync, options=CHANNEL) for sync in syncs]
        self._stubs: list[Any] = [sync_pb2_grpc.SyncServiceStub(one) for one in self._channels]
        self._owners = owners([spec.numel for spec in plan.layout.fragments], len(syncs))
        self._incarnation = 0
        self._coming = asyncio.Lock()
        self._apart = np.random.default_rng([plan.seed, number])
        self._works = itertools.count(number, 1000)
        self.lives = 0

    async def run(self) -> None:
        """Live until the plan is over."""
        await self._live(0)
        beating = asyncio.create_task(self._beat())
        try:
            async with asyncio.TaskGroup() as group:
                for fragment in range(len(self._plan.layout.fragments)):
                    group.create_task(self._train(fragment))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            for channel in self._channels:
                await channel.close()
            await self._http.aclose()

    async def _train(self, fragment: int) -> None:
        """Round after round of one fragment."""
        random = np.random.default_rng([self._plan.seed, self._number, fragment])
        life, seq, base, late = 0, 0, Anchor(), LatePushes()
        push, residuals = None, Residuals()
        while not self._plan.is_over(fragment, base.revision):
            if life != self._incarnation:
                self._end_life(life)
                life, seq, base, late = self._incarnation, 0, Anchor(), LatePushes()
                push, residuals = None, Residuals()
            if random.random() < self._plan.rebirth:
                self._end_life(life)
                await self._live(life)
                continue
            if push is None:
                of = next(self._works), self.name, random, self._plan, fragment
                push = offered(*of) if base.revision < 0 else progressed(*of, residuals)
            seq += 1
            sent = self._sent(push, life, seq, base)
            await self._sleep(random, fragment, base)
            async with self._plan.turns[fragment]:
                end, seen = await self._settled(sent, base, late)
                if end is End.FENCED:
                    await self._live(life)
                    await self._look(fragment)
            if end is End.FENCED:
                continue
            self._settle(residuals, sent, push)
            residuals.see_epoch(fragment, seen.epoch)
            if end is not End.STALE or base.revision < 0:
                push = None
            base = seen
        await self._leave(fragment, base, late)

    async def _sleep(self, random: np.random.Generator, fragment: int, base: Anchor) -> None:
        """Before a push: for longer than a round may take, or for some rounds, or not at all."""
        if random.random() < self._plan.stall:
            await asyncio.sleep(self._plan.settings.timeouts.round_deadline_s * 1.2)
        if self.name != self._plan.slow or base.revision < 0 or random.random() > NAPS:
            return
        until = base.revision + self._plan.rounds * (1 + random.choice(len(ROUNDS), p=ROUNDS))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NAP_S):
                while self._ledger.lines[fragment].newest < until:
                    await asyncio.sleep(AGAIN_S)

    def _sent(self, push: Push, life: int, seq: int, base: Anchor) -> Sent:
        for header in (push.header, *push.ranks):
            header.incarnation, header.seq = life, seq
            if push.progress is not None:
                header.base_revision, header.epoch = base.revision, base.epoch
        key = (self.name, life, push.header.fragment, seq)
        copy = pb.PushHeader()
        copy.CopyFrom(push.header)
        return self._ledger.send(
            Sent(
                key, push.work, copy, push.payloads, push.ranks,
                anchor=base.checksum, progress=push.progress, owed=push.owed,
            )
        )  # fmt: skip

    def _settle(self, residuals: Residuals, sent: Sent, push: Push) -> None:
        """Once it is known what became of a push, and not before: keep what the answer says."""
        if push.progress is None:
            return
        fragment = sent.header.fragment
        residuals.settle(fragment, sent.residual, push.loss)
        account = self._ledger.accounts.get(sent.key[:3])
        if self._plan.keeps_accounts and account is not None:
            owed = np.zeros_like(push.progress)
            residuals.load(fragment, owed)
            account.check(owed, sent.key)

    async def _settled(self, sent: Sent, base: Anchor, late: LatePushes) -> tuple[End, Anchor]:
        """Push, and pull the result, until it is known what became of it; and where we stand."""
        fragment, payloads, missed = sent.header.fragment, sent.payloads, False
        while True:
            try:
                answer = await self._pushed(fragment, sent.ranks, payloads)
                judged = self._ledger.answered(sent, answer)
                if judged == pb.VERDICT_FENCED:
                    break
                seen = await self._pull(fragment, base, revision=answer.result_revision)
            except grpc.aio.AioRpcError as error:
                if code_of(error) == "LEASE_LOST":
                    break
                await self._again(fragment, error)
                continue
            await self._see_late(fragment, seen, late)
            if sent.key in self._ledger.committed:
                assert judged in COUNTED, f"{sent.key} is committed, and was refused"
                return End.COMMITTED, seen
            if judged == pb.VERDICT_STALE:
                return End.STALE, seen
            if answer.counts_in:
                late.keep(sent, payloads, answer, base)
                return End.LATE, seen
            # A kill undid it, and others have closed the round meanwhile: then it is STALE now.
            assert not missed, f"{sent.key} is said to be in {seen.revision}, and is not"
            missed = True
        self._end_life(sent.key[1])
        return End.FENCED, Anchor()

    async def _see_late(self, fragment: int, seen: Anchor, late: LatePushes) -> None:
        """Send again what came late, where a process may have forgotten it."""
        committed = self._ledger.committed
        for one in late.missing(seen, lambda sent: sent.key in committed):
            kept = self._plan.settings.durability == "commit"
            assert not (kept and one.is_out(seen)), f"{one.sent.key} is not in {one.counts_in}"
            answer = await self._judged(fragment, one)
            if answer is None or self._ledger.answered(one.sent, answer) == pb.VERDICT_FENCED:
                return  # and so will the next push be
            assert answer.verdict != pb.VERDICT_ACCEPTED or answer.counts_in, one.sent.key
            late.answered(one, answer, seen)

    async def _judged(self, fragment: int, late: Late) -> pb.PushResponse | None:
        """What is answered to a push that is sent again; None where its life has ended."""
        while True:
            try:
                return await self._pushed(fragment, late.sent.ranks, late.payloads)
            except grpc.aio.AioRpcError as error:
                if code_of(error) == "LEASE_LOST":
                    return None
                await self._again(fragment, error)

    async def _leave(self, fragment: int, base: Anchor, late: LatePushes) -> None:
        """The end of a replica: what came late is published, or in a round that nobody closes."""
        while late.kept:
            try:
                seen = await self._pull(fragment, base, newest=True)
                break
            except grpc.aio.AioRpcError as error:
                await self._again(fragment, error)
        else:
            return
        await self._see_late(fragment, seen, late)
        for one in late.kept:
            one.sent.has_ended = True

    async def _pushed(
        self, fragment: int, ranks: list[pb.PushHeader], payloads: list[bytes]
    ) -> pb.PushResponse:
        """Push with all ranks, and wait until every call has ended."""

        def push(rank: int) -> Awaitable[pb.PushResponse]:
            parts = parts_of(ranks[rank], payloads[rank])
            return pushed(self._stub(fragment), parts, PUSH_S)

        again = partial(self._again, fragment)
        answer, alone = await pushed_by(len(ranks), push, again, self._apart)
        self._ledger.alone += alone
        return answer

    def _stub(self, fragment: int) -> Any:
        """The service that owns a fragment."""
        return self._stubs[self._owners[fragment]]

    async def _pull(self, fragment: int, held: Anchor, **wanted: Any) -> Anchor:
        """Pull exactly this revision, or the newest if it is gone, in whatever epoch it is now."""
        request = pb.PullRequest(
            run=RUN, replica=self.name, incarnation=self._incarnation, fragment=fragment,
            held=held.value, **wanted,
        )  # fmt: skip
        header, chunks = await pulled(self._stub(fragment), request, PULL_S)
        payload = b"".join(chunks)
        if header.difference_from:
            assert header.difference_from == held.value
            payload = followed(held.payload, chunks)
            self._ledger.differences += 1
        self._ledger.pulled(fragment, header, payload)
        epoch, revision = header.epoch, header.revision
        self._ledger.heard(self.name, fragment, epoch, revision, header.committed_tokens)
        return Anchor(revision, epoch, crc32c(payload), header.instance, header.value, payload)

    async def _look(self, fragment: int) -> None:
        """See the newest revision as somebody who only looks: what one's last life may have left.

        Where others make one after another it would go unread.
        """
        request = pb.PullRequest(run=RUN, fragment=fragment, newest=True)
        while self._plan.settings.asynchronous and self._ledger.committed:
            try:
                header, chunks = await pulled(self._stub(fragment), request, PULL_S)
            except grpc.aio.AioRpcError as error:
                if code_of(error) == "REVISION_GONE":
                    return  # there is none yet
                await self._again(fragment, error)
                continue
            self._ledger.pulled(fragment, header, b"".join(chunks))
            return

    async def _again(self, fragment: int, error: grpc.aio.AioRpcError) -> None:
        """Wait a moment before a call that failed is made again.

        Raises:
            AioRpcError: it failed in a way that no correct client may meet.
        """
        if code_of(error) == "RUN_UNKNOWN":
            await self._open(self._stub(fragment))
        elif not may_be_repeated(error):
            raise error
        await asyncio.sleep(AGAIN_S)

    async def _live(self, ended: int) -> None:
        """Begin a new life, unless another fragment has done so since ``ended``."""
        async with self._coming:
            if self._incarnation != ended:
                return
            answer = await self._http.post(f"/runs/{RUN}/replicas", json={"replica": self.name})
            self._incarnation = answer.raise_for_status().json()["incarnation"]
            self.lives += 1
            for stub in self._stubs:
                await self._opened(stub)

    async def _opened(self, stub: Any) -> None:
        """Open the run at a sync service, however often that is killed meanwhile."""
        while True:
            try:
                await self._open(stub)
                return
            except grpc.aio.AioRpcError as error:
                if not may_be_repeated(error) and code_of(error) != "RUN_UNKNOWN":
                    raise
                await asyncio.sleep(AGAIN_S)

    async def _open(self, stub: Any) -> None:
        layout = self._plan.layout.to_proto()
        await stub.OpenRun(
            pb.OpenRunRequest(
                run=RUN, replica=self.name, incarnation=self._incarnation, layout=layout
            ),
            timeout=15,
        )

    def _end_life(self, incarnation: int) -> None:
        for sent in self._ledger.sent.values():
            if sent.key[:2] == (self.name, incarnation) and sent.key not in self._ledger.committed:
                sent.has_ended = True

    async def _beat(self) -> None:
        """Keep the lease; a lost one is found out by the next push."""
        path = f"/runs/{RUN}/replicas/{self.name}/heartbeat"
        while True:
            await self._http.post(path, json={"incarnation": self._incarnation})
            await asyncio.sleep(self._plan.settings.timeouts.heartbeat_s / 2)
