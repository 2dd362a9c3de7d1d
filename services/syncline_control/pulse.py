"""Heartbeats on their way to the database: those that come close together go together.

Who comes first after a quiet time goes at once; whoever comes within ``GATHER_S`` of it goes with
the next. So a small fleet waits for nothing, and a large one costs a few transactions a second.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from syncline_control.operations import heartbeats
from syncline_control.operations.heartbeats import Beat
from syncline_control.state import PENDING_MAX, State
from syncline_proto.errors import Overloaded, SynclineError
from syncline_proto.rest import Heartbeat, HeartbeatAnswer

GATHER_S = 0.2
"""Nothing against a lease, and 16 heartbeats of 200 replicas that each send one in 2.5 s."""


@dataclass(slots=True, kw_only=True)
class Gathering:
    """Heartbeats that will go together; ``outcomes`` are in their order."""

    beats: list[Beat] = field(default_factory=list[Beat])
    outcomes: asyncio.Task[list[HeartbeatAnswer | SynclineError]] | None = None


class Pulse:
    """Takes the heartbeats of one control plane."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._open: Gathering | None = None
        """Takes more heartbeats."""
        self._next_at = 0.0
        """Monotonic seconds; not before it does a gathering go."""

    async def beat(self, run: str, replica: str, body: Heartbeat) -> HeartbeatAnswer:
        """Take a heartbeat; it is committed when this returns.

        Raises:
            LeaseLost: this incarnation does not hold the lease any more.
            RunUnknown, ReplicaUnknown: there is no such run or replica.
            Overloaded, StoreError: as ``State.do`` does.
        """
        gathering = self._open
        if gathering is None:
            gathering = self._open = Gathering()
            gathering.outcomes = asyncio.create_task(self._send(gathering))
        if len(gathering.beats) >= PENDING_MAX:
            raise Overloaded("Too many heartbeats wait for the database; try again.")
        mine = len(gathering.beats)
        gathering.beats.append(Beat(run=run, replica=replica, body=body))
        assert gathering.outcomes is not None
        outcome = (await asyncio.shield(gathering.outcomes))[mine]
        if isinstance(outcome, SynclineError):
            raise outcome
        return outcome

    async def _send(self, gathering: Gathering) -> list[HeartbeatAnswer | SynclineError]:
        await asyncio.sleep(self._next_at - time.monotonic())
        self._open, self._next_at = None, time.monotonic() + GATHER_S
        return await self._state.do_first(heartbeats.take, gathering.beats)
