"""The storm: three replicas at work, and sync services that are killed at random instants.

SIGKILL comes while a service works, and now and then while it is still starting. Of several that
share the run one at a time is killed. At the end each is killed once more, and what it has then
must be what the reference has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import grpc
import numpy as np

from chaos.calls import may_be_repeated
from chaos.ledger import Ledger
from chaos.plan import RUN, Plan
from chaos.replica import Replica
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.owners import owners
from syncline_proto.settings import CodecName, RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.cluster import Cluster, Service

SIZES = (65_536, 100_003, 131_073, 300_000)
"""Elements of the fragments: less and more than what the service works on at a time."""
REPLICAS = 3
MORE_ROUNDS = 2
"""After the last kill, so that what was under way then is settled, too; and after revision 0,
where a machine is so busy that no kill left time for more."""
UP_S, QUIET_S, STARTING_S = 2.0, 6.0, 1.5
LOOK_S = 0.2
ALONE = (("grpc.use_local_subchannel_pool", 1),)
"""Else a new channel inherits what others in the process last found there: a refusal, for a while,
though the service is up again."""
AT_ONCE = 0.7
"""How likely a kill follows a new revision at once, where it is published before it is written."""
PATIENCE_S = 18.0
"""For each kill, which takes about three, and for the beginning and the end."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a storm comes to."""

    kills: int
    revisions: int
    """Of all fragments together."""
    pushes: int
    accepted: int
    lost: int
    twice: int
    went_back: int
    """Revisions that were published, and lost in a kill: none unless durability is async."""
    late: int
    """Pushes that are committed with an age: none where rounds wait for everyone."""
    differences: int
    """Pulls that were answered with one."""
    pairs: int
    """Rounds of two whole pushes in int8."""
    owed: int
    """Pushes that are committed with what earlier ones had lost."""
    seconds: float
    seed: int


@dataclass(slots=True)
class Storm:
    """One run under kills; ``quiet`` is how likely a time without them follows a kill."""

    cluster: Cluster
    seed: int
    kills: int
    quiet: float = 0.0
    stall: float = 0.0
    rebirth: float = 0.01
    deadline_s: float = 20.0
    durability: str = "commit"
    quorum: int | None = None
    """With it a replica is slow; and so it is where rounds do not wait."""
    late: int | None = None
    """So many rounds may a push be late and count; None: as many as the settings have it."""
    strategy: str = "edit"
    down: str = "bf16"
    up: CodecName | None = None
    """Of all pushes; None: each has one of all codecs."""
    tell: Callable[[str], None] = lambda _: None
    killed: int = field(default=0, init=False)
    ledger: Ledger = field(init=False)
    _owners: tuple[int, ...] = field(init=False)

    def run(self) -> Figures:
        """Let it pass.

        Raises:
            AssertionError, AioRpcError, TimeoutError, or a group of them: the service did what it
                must not do; the seed is told.
        """
        began_s = time.monotonic()
        try:
            asyncio.run(asyncio.wait_for(self._pass(), PATIENCE_S * (self.kills + 2)))
        except BaseException as error:
            error.add_note(f"chaos: seed {self.seed}, after {self.killed} kills")
            for sync in self.cluster.syncs:
                error.add_note(sync.last_words())
            raise
        ledger = self.ledger
        sent = ledger.sent.values()
        return Figures(
            kills=self.killed,
            revisions=ledger.revisions,
            pushes=len(sent),
            accepted=sum(push.taken > 0 for push in sent),
            lost=len(ledger.lost()),
            twice=ledger.twice,
            went_back=ledger.went_back,
            late=ledger.late,
            differences=ledger.differences,
            pairs=ledger.pairs,
            owed=sum(account.owed for account in ledger.accounts.values()),
            seconds=round(time.monotonic() - began_s, 1),
            seed=self.seed,
        )

    async def _pass(self) -> None:
        alone = self.strategy == "async"  # who is last has nobody beside it
        settings = RunSettings.model_validate(
            {
                "strategy": self.strategy,
                "sync_seconds": None,
                "window": REPLICAS if alone else None,
                "min_replicas": 1 if alone else 2,
                "quorum": self.quorum,
                "late": {"age_max": self.late},
                "durability": self.durability,
                "codec": {"up": self.up or "bf16", "down": self.down},
                "outer": {"lr": 0.7, "momentum": 0.9, "clip": 8.0},
                "penalty": {"ratio_max": 100.0, "z_max": 1e6, "step_power": 0.5},
                "timeouts": {"lease": 0.75 * self.deadline_s, "round_deadline": self.deadline_s},
            }
        )
        self._owners = owners(SIZES, len(self.cluster.syncs))
        stores = [self.cluster.stores[owner] / "runs" / RUN for owner in self._owners]
        self.ledger = Ledger(
            [store / f"{fragment:05d}" for fragment, store in enumerate(stores)],
            SIZES,
            settings,
        )
        layout = Layout(
            tuple(TensorSpec(f"w{i}", (n,), "float32") for i, n in enumerate(SIZES)),
            tuple(FragmentSpec(f"f{i}", (Box(i, (0,), (n,)),)) for i, n in enumerate(SIZES)),
        )
        slow = "replica-0" if settings.quorum or settings.asynchronous else ""
        codecs = get_args(CodecName) if self.up is None else (self.up,)
        plan = Plan(self.seed, settings, layout, self.stall, self.rebirth, codecs, slow)
        self.cluster.post("/runs", {"name": RUN, "settings": settings.model_dump(mode="json")})
        replicas = [
            Replica(i, plan, self.ledger, self.cluster.control_url, self.cluster.sync_addresses)
            for i in range(REPLICAS)
        ]
        async with asyncio.TaskGroup() as group:
            looking = [group.create_task(self._look(a)) for a in self.cluster.sync_addresses]
            group.create_task(self._kill_and_end(plan))
            lives = [group.create_task(replica.run()) for replica in replicas]
            await asyncio.wait(lives)
            for look in looking:
                look.cancel()
        for sync in self.cluster.syncs:
            await self._kill_again(sync)
        await self._compare()
        self.ledger.close()
        for sync in self.cluster.syncs:
            log = sync.log.read_text(errors="replace")
            assert "Traceback" not in log and "\nsyncline-sync: " not in log, "it ended by itself"

    async def _kill_and_end(self, plan: Plan) -> None:
        """Kill, all but once; then let every fragment come to its last revision."""
        random = np.random.default_rng([self.seed])
        last = self.kills - len(self.cluster.syncs)
        while self.killed < last:
            quiet = QUIET_S if random.random() < self.quiet else 0.0
            await asyncio.sleep(quiet + UP_S * random.random())
            early_s = random.uniform(0.1, STARTING_S) if random.random() < 0.2 else None
            sync = self.cluster.syncs[random.integers(len(self.cluster.syncs))]
            if self.durability == "async" and random.random() < AT_ONCE:
                await self._published()
            await self._kill_again(sync, early_s if self.killed < last - 1 else None)
            self.tell(self.progress(plan))
        plan.until = [max(line.newest, 0) + MORE_ROUNDS for line in self.ledger.lines]

    async def _published(self) -> None:
        """Wait until somebody has a new revision: it may not be on the disk yet."""
        before = self.ledger.revisions
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                while self.ledger.revisions <= before:
                    await asyncio.sleep(0.001)

    async def _kill_again(self, sync: Service, early_s: float | None = None) -> None:
        """Kill a service and start it; with ``early_s`` kill it that long into its start."""
        await asyncio.to_thread(sync.kill)
        self.killed += 1
        starting = asyncio.create_task(asyncio.to_thread(sync.start))
        if early_s is not None:
            await asyncio.sleep(early_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(sync.pid, signal.SIGKILL)
            self.killed += 1
            with contextlib.suppress(AssertionError):  # it says that it has not started
                await starting
            await asyncio.to_thread(sync.kill)  # it is waited for, too
            starting = asyncio.create_task(asyncio.to_thread(sync.start))
        await starting

    async def _look(self, address: str) -> None:
        """Ask where the fragments stand, all the time, as somebody who only looks."""
        async with grpc.aio.insecure_channel(address, options=ALONE) as channel:
            stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    request = pb.GetRunStatusRequest(run=RUN)
                    status = await stub.GetRunStatus(request, timeout=5)
                    for state in status.fragments:
                        where = (status.epoch, state.revision, state.committed_tokens)
                        self.ledger.heard("who looks", state.fragment, *where)
                except grpc.aio.AioRpcError as error:
                    unknown = error.code() is grpc.StatusCode.NOT_FOUND
                    if not may_be_repeated(error) and not (unknown and not self.ledger.committed):
                        raise

    async def _compare(self) -> None:
        """Pull what the last lives of the services have, and compare it: all of it is stored."""
        for fragment, owner in enumerate(self._owners):
            address = self.cluster.sync_addresses[owner]
            async with grpc.aio.insecure_channel(address, options=ALONE) as channel:
                stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
                request = pb.PullRequest(run=RUN, fragment=fragment, newest=True)
                parts = [part async for part in stub.Pull(request, timeout=20)]
                payload = b"".join(part.chunk.data for part in parts[1:])
            header = parts[0].header
            self.ledger.pulled(fragment, header, payload)
            self.ledger.read(fragment, header.revision)
            assert header.revision == self.ledger.lines[fragment].newest, f"fragment {fragment}"

    def progress(self, plan: Plan) -> str:
        ledger = self.ledger
        judged = [sent.judged for sent in ledger.sent.values()]
        stale, odd = judged.count(pb.VERDICT_STALE), judged.count(pb.VERDICT_ANOMALOUS)
        anew = sum(sent.taken > 1 for sent in ledger.sent.values())
        ended = sum(sent.has_ended for sent in ledger.sent.values())
        return (
            f"{self.killed} kills, {ledger.revisions} revisions, {len(judged)} pushes "
            f"({len(ledger.committed)} committed, {stale} stale, {odd} anomalous, {ended} gone "
            f"with a life, {ledger.rescaled} rescaled, {anew} accepted anew, {ledger.late} late), "
            f"{ledger.alone} ranks came again alone, {ledger.went_back} revisions went back"
        )
