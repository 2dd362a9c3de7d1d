"""The control plane's REST bodies, shared by those who serve them and those who call.

Requests refuse unknown keys, at every depth; answers may grow, so readers ignore keys they do not
know. What a request and an answer share (``Progress``, ``RoundReport``) is an answer that a request
reads strictly. Times are seconds since 1970 (UTC) as floats; durations are seconds. A number that
may be missing may come as NaN or infinity, and is then kept as missing; any other (but the loss of
a point) must be finite. A list stops at its first wrong part: to tell of a million would take
seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, FiniteFloat

from syncline_proto.names import LINE_PATTERN, NAME_PATTERN
from syncline_proto.owners import SHARDS_MAX
from syncline_proto.settings import RunSettings

WHY_CHARACTERS_MAX = 300
"""Of the words with which a replica leaves, or a sync service ends; they are part of an address."""

Count = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
"""Fits the control plane's tables."""


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")


def strictly(kind: type[Answer]) -> BeforeValidator:
    """Inside a request, refuse the keys that readers of this answer would ignore."""
    return BeforeValidator(lambda value: kind.model_validate(value, extra="forbid"))


class RunState(StrEnum):
    """The life of a run: running <-> paused, and from either to stopped or finished."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    """Ended by an operator."""
    FINISHED = "finished"
    """Its token budget is committed."""


WaitsFor = Literal["replicas", "resume"]
"""What a run needs that has not ended and does not go on: its ``min_replicas``, or the operator."""


class ReplicaState(StrEnum):
    ALIVE = "alive"
    DRAINING = "draining"
    LEFT = "left"
    """Said goodbye."""
    LOST = "lost"
    """Its lease ran out."""
    KICKED = "kicked"


class Origin(Answer):
    """The checkpoint from which a run began, in place of a replica's parameters."""

    checkpoint: str = Field(max_length=2048, pattern=LINE_PATTERN)
    """Where it lies, its name last."""
    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Its own: a sync service begins from no other."""
    revision: Count


class RunCreate(Request):
    """Create a run. Creating it again with equal settings answers with the run that is there."""

    name: str = Field(pattern=NAME_PATTERN, examples=["my-run"])
    settings: RunSettings = RunSettings()
    job: dict[str, Any] = Field(default_factory=dict)
    """What the trainer was asked to do (model, data, optimizer), for export and for people."""
    origin: Annotated[Origin, strictly(Origin)] | None = None
    """Set by who restores a checkpoint, once the sync services have fetched it; 409 if the run is
    there without it. Whoever leaves it out finds the run whatever its origin."""


class RunView(Answer):
    name: str
    state: RunState
    settings: RunSettings
    settings_version: int
    """Grows by one with each live change."""
    job: dict[str, Any] = Field(default_factory=dict)
    """A list of runs leaves it out."""
    origin: Origin | None = None
    created_at: float
    ended_at: float | None = None
    replicas_alive: int = 0
    replicas_taking_part: int = 0
    replicas_wanted: int | None = None
    """How many there should be (``PUT …/scale``); None: nobody has said."""
    revision: int = 0
    """The smallest revision over the run's fragments, once all are known."""
    fragment_rounds: int = 0
    """Rounds committed, added up over all fragments."""
    exclusions: int = 0
    """Pushes judged anomalous, over all fragments."""
    committed_tokens: int = 0
    """Of the fragment with the highest number; others may lack a push, excluded or late."""
    loss: float | None = None
    """Mean of the replicas' last training losses, nats per token."""
    idle_since: float | None = None
    """When the last live replica was gone; None while one is alive, before the first came, and
    once the run has ended. A run without a token budget waits like this for as long as it takes."""
    waits_for: WaitsFor | None = None
    """Why nothing goes on in a run that has not ended: too few are alive in it, or it is paused."""


class Scale(Request):
    """How many replicas there should be; whoever starts and ends them acts on it."""

    replicas: int | None = Field(ge=1, le=10_000, examples=[4], description="None: nobody says.")


class SettingsPatch(Request):
    """A live change: a partial RunSettings with live keys only."""

    settings: dict[str, Any] = Field(examples=[{"outer": {"lr": 0.5}}])


class ReplicaRegister(Request):
    """Ask for a lease. The same name again starts a new incarnation and fences the older one."""

    replica: str = Field(pattern=NAME_PATTERN, examples=["replica-0"])
    ranks: int = Field(default=1, ge=1, le=65536)
    host: str = Field(default="", max_length=255, pattern=LINE_PATTERN)
    pid: Count = 0
    fingerprint: str = Field(default="", max_length=128, pattern=LINE_PATTERN)
    """Of the replica's layout. It is OpenRun that compares layouts; here it only keeps one with
    another model from fencing a life of its name that has joined (409, LAYOUT_MISMATCH)."""


class SyncEndpoint(Answer):
    """One sync service; ``index`` of ``shards`` says which part of the fragments it owns.

    0 of 1: all of them. Otherwise there are others, and which are whose each says in OpenRun.
    """

    name: str
    address: str
    index: int = 0
    shards: int = 1
    alive: bool = True


class Registration(Answer):
    replica: str
    incarnation: int
    ordinal: int
    """Counts the run's replica names from 0 in the order they first came; kept over restarts."""
    lease_s: float
    heartbeat_s: float
    run: RunView
    sync_services: list[SyncEndpoint]


class LossPoint(Request):
    """One point of a loss curve, in nats per token."""

    kind: Literal["train", "held-out", "merged"] = "train"
    tokens: Count
    """Run tokens: committed by everyone, plus the replica's own since."""
    loss: float
    """A point whose loss is not finite is passed over."""
    inner_step: int = 0


class Progress(Answer):
    """What a replica says of itself with a heartbeat; everything is optional."""

    phase: Literal["joining", "warm-up", "training", "waiting", "paused", "draining", "done"] = (
        "joining"
    )
    inner_step: int = 0
    tokens: int = 0
    """Trained by this incarnation."""
    committed_tokens: int = 0
    revision: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    inner_lr: float | None = None
    tokens_per_second: float | None = None
    steps_per_second: float | None = None
    """Inner steps in a second of its own time, without what it waited for."""
    exposed_sync_s: FiniteFloat = 0.0
    """Time that training has waited for synchronisation, since the start."""
    wall_s: FiniteFloat = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


class Heartbeat(Request):
    incarnation: int
    progress: Annotated[Progress, strictly(Progress)] = Progress()
    points: Annotated[list[LossPoint], FailFast()] = Field(
        default_factory=list[LossPoint], max_length=1000
    )


class HeartbeatAnswer(Answer):
    lease_s: float
    run_state: RunState
    drain: bool = False
    """Finish the inner step, push what was done, leave."""
    settings: RunSettings
    settings_version: int
    replicas_alive: int = 1
    step_share: float = 1.0
    """Of a round's inner steps (``sync_every``), so many this replica is to make."""


class ReplicaView(Answer):
    replica: str
    incarnation: int
    state: ReplicaState
    taking_part: bool = False
    """Its push was in the last committed round."""
    ranks: int = 1
    host: str = ""
    pid: int = 0
    joined_at: float = 0.0
    lease_left_s: float = 0.0
    progress: Progress = Progress()
    weight: float | None = None
    """Mean share over the fragments of its last round."""
    z: float | None = None
    """Largest z-score over the fragments of its last round."""
    exclusions: int = 0
    pace: float | None = None
    """Its inner steps a second of its own time, over the median of the others'."""
    straggles: bool = False
    """It has been slower than the others for a while (``stragglers``)."""
    step_share: float = 1.0
    """Of a round's inner steps, so many it is to make."""


class Member(Answer):
    replica: str
    incarnation: int
    ranks: int = 1


class RunMembership(Answer):
    """What a sync service must know of a run."""

    run: str
    state: RunState
    settings: RunSettings
    settings_version: int
    members: list[Member]
    origin: Origin | None = None
    revision: int = 0
    """Every fragment has come as far, or further. A sync service that has nothing of a run that has
    gone on (0, or its origin's: it has not) is on another folder than the run's; one that has less
    is on an older copy of its folder."""
    phase: int = 0
    """How often the synchronous phase has started again, where several services share the run."""
    phase_ended: bool = False
    """Every service has all its offers of this phase: each may become revision 1."""
    settling: int = 0
    """Leased data of lives that are gone waits until every fragment has said that nothing of theirs
    is open (``Settled``), as of this version or a later one; 0: none does."""


class Membership(Answer):
    """Every run that has not ended. ``version`` changes whenever anything below it does, but for a
    ``revision`` that grows.
    """

    version: int
    runs: list[RunMembership]
    instance: str = ""
    """Of the control plane's process: another one may have another database."""


class PhaseVote(Request):
    """How a run's synchronous phase stands at one of the services that share the run.

    Said until the membership tells what follows from it: the phase has ended, or the next began.
    """

    run: str = Field(pattern=NAME_PATTERN)
    phase: Count
    offered: bool
    """True: all its fragments have their offer, and keep it. False: everyone in it is gone."""


class SyncServiceHello(Request):
    """A sync service announces itself, and says so again within every ``lease_s``.

    Services that share the runs' fragments (``index`` of ``shards``) agree on their number, and
    each has an index of its own.
    """

    name: str = Field(pattern=NAME_PATTERN, examples=["sync-0"])
    address: str = Field(max_length=255, pattern=LINE_PATTERN, examples=["127.0.0.1:50051"])
    index: Count = 0
    shards: int = Field(default=1, ge=1, le=SHARDS_MAX)
    instance: str = Field(max_length=128, pattern=LINE_PATTERN)
    votes: Annotated[list[PhaseVote], FailFast()] = Field(
        default_factory=list[PhaseVote], max_length=10_000
    )
    """Where several services share runs whose synchronous phase is about to end."""


class SyncServiceAnswer(Answer):
    lease_s: float


class Event(Answer):
    id: int
    time: float
    run: str | None
    replica: str | None
    kind: str
    message: str


class MetricSeries(Answer):
    """One replica's loss curve of one kind, oldest first."""

    replica: str
    kind: str
    tokens: list[int]
    loss: list[float]
    time: list[float]


class Problem(Answer):
    """RFC 9457 problem details; ``code`` is ours (docs/protocol.md lists them)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
