"""The scaler's looks: ask the control plane, see the workloads, change them, tell of that.

What fails is asked again, later and later, and ends the scaler when it has failed too often in a
row. Decides nothing (``core``) and knows no platform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from syncline.launch.client import RUNS_LISTED, OperatorClient
from syncline.scaling.core import FAILURES_MAX, Change, Demand, Observed, change_of, told, wait_s
from syncline_proto.errors import ConfigError, SynclineError
from syncline_proto.rest import ReplicaState, RunView


class Workload(Protocol):
    """What starts and ends a run's replicas; its text is its name."""

    def look(self) -> Observed:
        """How many replicas there are.

        Raises:
            ConfigError: it is not there.
            SynclineError: it cannot be looked at now.
        """
        ...

    def scale(self, replicas: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One change that was made."""

    change: Change
    sentence: str


class Scaler:
    """Looks after the workloads of one run, or of all."""

    def __init__(
        self,
        client: OperatorClient,
        run: str | None,
        workload_of: Callable[[str], Workload],
        tell: Callable[[Done], None],
        warn: Callable[[str], None],
    ) -> None:
        """``run``: None for all that somebody has scaled. ``warn`` hears each sentence once."""
        self._client, self._run, self._workload_of = client, run, workload_of
        self._tell, self._warn = tell, warn
        self._settled: set[str] = set()
        """Runs that have ended, and whose workloads are as they are to stay."""
        self._has_said = False
        """That there are runs which are not seen to."""

    def once(self) -> None:
        """Look at every run once, and do what is to be done; one that fails holds up no other.

        Raises:
            SynclineError: the first that failed, once all others have been looked at.
        """
        failed: SynclineError | None = None
        for run in self._runs():
            try:
                self._see_to(run)
            except SynclineError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def follow(
        self, every_s: float, wait: Callable[[float], object], *, keep: bool = False
    ) -> None:
        """Look again and again, until the run that was named has ended, or for ever.

        Raises:
            SynclineError: looks have failed ``FAILURES_MAX`` times in a row; the last of them.
        """
        failures, said = 0, ""
        while keep or self._run is None or self._run not in self._settled:
            try:
                self.once()
                failures, said = 0, ""
            except SynclineError as error:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
                if error.message != said:
                    self._warn(
                        f"{error.message} Trying again, {FAILURES_MAX} times in a row at most."
                    )
                said = error.message
            wait(wait_s(every_s, failures))

    def _runs(self) -> Iterator[RunView]:
        if self._run is not None:
            yield self._client.run(self._run)
            return
        newest = self._client.runs()
        if len(newest) >= RUNS_LISTED and not self._has_said:
            self._has_said = True
            self._warn(
                f"Of so many runs the newest {RUNS_LISTED} are seen to; give an older one a "
                "scaler of its own."
            )
        # Who never said how many there should be looks after the replicas himself.
        yield from (one for one in newest if one.replicas_wanted is not None)

    def _see_to(self, run: RunView) -> None:
        has_ended = run.ended_at is not None
        if run.name in self._settled:
            return
        try:
            workload = self._workload_of(run.name)
            observed = workload.look()
        except ConfigError:
            if not has_ended:
                raise
            self._settled.add(run.name)  # who ends a run may remove what had its replicas
            return
        alive = [] if has_ended else self._client.replicas(run.name)
        demand = Demand(
            run=run.name,
            wanted=run.replicas_wanted,
            has_ended=has_ended,
            alive=[one.replica for one in alive if one.state is ReplicaState.ALIVE],
        )
        change = change_of(demand, observed)
        if change is not None:
            workload.scale(change.after)
            self._tell(Done(change=change, sentence=told(change, str(workload), observed)))
        if has_ended:
            self._settled.add(run.name)
