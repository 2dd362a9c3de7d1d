"""The storm: three replicas at work, and a sync service that is killed at random instants.

SIGKILL comes while the service works, and now and then while it is still starting. At the end it
is killed once more, and what it has then must be what the reference has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from chaos.ledger import Ledger
from chaos.replica import RUN, Plan, Replica, may_be_repeated
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.cluster import Cluster

SIZES = (65_536, 100_003, 131_073, 300_000)
"""Elements of the fragments: less and more than what the service works on at a time."""
REPLICAS = 3
MORE_ROUNDS = 2
"""After the last kill, so that what was under way then is settled, too."""
UP_S, QUIET_S, STARTING_S = 2.0, 6.0, 1.5
LOOK_S = 0.2
PATIENCE_S = 18.0
"""For each kill; it takes about three."""


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
    seconds: float
    seed: int


@dataclass(slots=True)
class Storm:
    """One run under kills; ``quiet`` is how likely a time without them follows a kill."""

    cluster: Cluster
    store: Path
    seed: int
    kills: int
    quiet: float = 0.0
    stall: float = 0.0
    rebirth: float = 0.01
    deadline_s: float = 20.0
    tell: Callable[[str], None] = lambda _: None
    killed: int = field(default=0, init=False)
    ledger: Ledger = field(init=False)

    def run(self) -> Figures:
        """Let it pass.

        Raises:
            AssertionError, AioRpcError, TimeoutError, or a group of them: the service did what it
                must not do; the seed is told.
        """
        began_s = time.monotonic()
        try:
            asyncio.run(asyncio.wait_for(self._pass(), PATIENCE_S * self.kills))
        except BaseException as error:
            error.add_note(f"chaos: seed {self.seed}, after {self.killed} kills")
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
            seconds=round(time.monotonic() - began_s, 1),
            seed=self.seed,
        )

    async def _pass(self) -> None:
        settings = RunSettings.model_validate(
            {
                "min_replicas": 2,
                "codec": {"up": "bf16", "down": "bf16"},
                "outer": {"lr": 0.7, "momentum": 0.9, "clip": 8.0},
                "penalty": {"ratio_max": 100.0, "z_max": 1e6, "step_power": 0.5},
                "timeouts": {"lease": 0.75 * self.deadline_s, "round_deadline": self.deadline_s},
            }
        )
        self.ledger = Ledger(self.store / "runs" / RUN, SIZES, settings.outer)
        layout = Layout(
            tuple(TensorSpec(f"w{i}", (n,), "float32") for i, n in enumerate(SIZES)),
            tuple(FragmentSpec(f"f{i}", (Box(i, (0,), (n,)),)) for i, n in enumerate(SIZES)),
        )
        plan = Plan(self.seed, settings, layout, self.stall, self.rebirth)
        self.cluster.post("/runs", {"name": RUN, "settings": settings.model_dump(mode="json")})
        replicas = [
            Replica(i, plan, self.ledger, self.cluster.control_url, self.cluster.sync_address)
            for i in range(REPLICAS)
        ]
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look())
            group.create_task(self._kill_and_end(plan))
            lives = [group.create_task(replica.run()) for replica in replicas]
            await asyncio.wait(lives)
            looking.cancel()
        await self._kill_again()
        await self._compare()
        self.ledger.close()
        log = self.cluster.sync.log.read_text(errors="replace")
        assert "Traceback" not in log and "\nsyncline-sync: " not in log, "it ended by itself"

    async def _kill_and_end(self, plan: Plan) -> None:
        """Kill, all but once; then let every fragment come to its last revision."""
        random = np.random.default_rng([self.seed])
        while self.killed < self.kills - 1:
            quiet = QUIET_S if random.random() < self.quiet else 0.0
            await asyncio.sleep(quiet + UP_S * random.random())
            early_s = random.uniform(0.1, STARTING_S) if random.random() < 0.2 else None
            await self._kill_again(early_s if self.killed < self.kills - 2 else None)
            self.tell(self.progress(plan))
        plan.until = [line.revision + MORE_ROUNDS for line in self.ledger.lines]

    async def _kill_again(self, early_s: float | None = None) -> None:
        """Kill the service and start it; with ``early_s`` kill it that long into its start."""
        await asyncio.to_thread(self.cluster.sync.kill)
        self.killed += 1
        starting = asyncio.create_task(asyncio.to_thread(self.cluster.sync.start))
        if early_s is not None:
            await asyncio.sleep(early_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.cluster.sync.pid, signal.SIGKILL)
            self.killed += 1
            with contextlib.suppress(AssertionError):  # it says that it has not started
                await starting
            await asyncio.to_thread(self.cluster.sync.kill)  # it is waited for, too
            starting = asyncio.create_task(asyncio.to_thread(self.cluster.sync.start))
        await starting

    async def _look(self) -> None:
        """Ask where the fragments stand, all the time, as somebody who only looks."""
        async with grpc.aio.insecure_channel(self.cluster.sync_address) as channel:
            stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    request = pb.GetRunStatusRequest(run=RUN)
                    for state in (await stub.GetRunStatus(request, timeout=5)).fragments:
                        self.ledger.heard(
                            "who looks", state.fragment, state.revision, state.committed_tokens
                        )
                except grpc.aio.AioRpcError as error:
                    unknown = error.code() is grpc.StatusCode.NOT_FOUND
                    if not may_be_repeated(error) and not (unknown and not self.ledger.committed):
                        raise

    async def _compare(self) -> None:
        """Pull what the last life of the service has, and compare it."""
        async with grpc.aio.insecure_channel(self.cluster.sync_address) as channel:
            stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
            for fragment, line in enumerate(self.ledger.lines):
                request = pb.PullRequest(run=RUN, fragment=fragment, newest=True)
                parts = [part async for part in stub.Pull(request, timeout=20)]
                header = parts[0].header
                assert header.revision == line.revision, f"fragment {fragment}"
                self.ledger.pulled(fragment, header, b"".join(p.chunk.data for p in parts[1:]))

    def progress(self, plan: Plan) -> str:
        ledger = self.ledger
        judged = [sent.judged for sent in ledger.sent.values()]
        stale, odd = judged.count(pb.VERDICT_STALE), judged.count(pb.VERDICT_ANOMALOUS)
        anew = sum(sent.taken > 1 for sent in ledger.sent.values())
        ended = sum(sent.has_ended for sent in ledger.sent.values())
        return (
            f"{self.killed} kills, {ledger.revisions} revisions, {len(judged)} pushes "
            f"({len(ledger.committed)} committed, {stale} stale, {odd} anomalous, {ended} gone "
            f"with a life, {ledger.rescaled} rescaled, {anew} accepted anew)"
        )
