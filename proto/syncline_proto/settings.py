"""The settings of a run: what its replicas and its sync services must agree on.

They belong to the run: the control plane keeps them, replicas and sync services adopt them. A
strategy is a preset of the one pipeline; whatever is set beside it wins over the preset.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Literal, Self, cast

from pydantic import Field, ValidationError, model_validator

from syncline_proto.errors import ConfigError
from syncline_proto.merging import LateSettings, OuterSettings, PenaltySettings
from syncline_proto.presets import PRESETS, under
from syncline_proto.section import Section
from syncline_proto.straggling import StragglerSettings
from syncline_proto.words import paths_in, sentence, unknown

CodecName = Literal["fp32", "bf16", "int8", "int4", "topk"]
DownCodecName = Literal["fp32", "bf16", "int8"]
Strategy = Literal["local-sgd", "diloco", "edit", "edit-paper", "a-edit", "streaming", "async"]
Durability = Literal["commit", "async"]

LATE_AGE_MAX = 2
"""Of a late push where rounds close without everyone; a base much older leads elsewhere."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; a name other than localhost counts as not."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class CodecSettings(Section):
    """How numbers travel: pseudo-gradients up, parameters down."""

    up: CodecName = "bf16"
    down: DownCodecName = "bf16"


class TimeoutSettings(Section):
    """One profile, from which every other time follows (all in seconds)."""

    profile: Literal["lan", "wan"] = "lan"
    lease: float | None = Field(default=None, ge=0.5, le=3600)
    round_deadline: float | None = Field(default=None, ge=1, le=86400)

    @property
    def lease_s(self) -> float:
        """A replica is lost this long after its last heartbeat."""
        return self.lease or {"lan": 10.0, "wan": 60.0}[self.profile]

    @property
    def heartbeat_s(self) -> float:
        """Two heartbeats in a row may be lost; the one after a third comes as the lease ends."""
        return self.lease_s / 4

    @property
    def round_deadline_s(self) -> float:
        """A round with the minimum closes this long after its first push."""
        return self.round_deadline or {"lan": 120.0, "wan": 900.0}[self.profile]

    @property
    def connect_s(self) -> float:
        """One attempt to connect."""
        return {"lan": 5.0, "wan": 20.0}[self.profile]

    @property
    def call_s(self) -> float:
        """One push, pull or REST call without progress; long waits are asked for again."""
        return {"lan": 30.0, "wan": 120.0}[self.profile]

    @property
    def give_up_s(self) -> float:
        """A replica whose sync service stays away this long ends with an error."""
        return {"lan": 300.0, "wan": 3600.0}[self.profile]

    @model_validator(mode="after")
    def _lease_before_deadline(self) -> Self:
        if self.lease_s >= self.round_deadline_s:
            raise ValueError(
                f"the lease ({self.lease_s} s) must be shorter than the round deadline "
                f"({self.round_deadline_s} s), or a lost replica would hold up a round."
            )
        return self


class RunSettings(Section):
    """Everything a run's replicas and services must agree on."""

    strategy: Strategy = "edit"
    sync_every: int = Field(default=64, ge=1, le=1_000_000)
    """Inner steps between two rounds of the same fragment (H)."""
    sync_seconds: float | None = Field(default=None, ge=0.1, le=86400)
    """Seconds between two rounds of the same fragment, in which each replica makes as many inner
    steps as it can (A-EDiT); ``sync_every`` is then no more than what shares of steps, and a
    joiner's first ones, are measured by. None: by inner steps."""
    min_round_steps: int = Field(default=0, ge=0, le=1_000_000)
    """With ``sync_seconds``: an interval goes on until all replicas together have made so many
    inner steps, for at most four intervals."""
    blocks_per_fragment: int = Field(default=1, ge=1, le=10_000)
    """Neighbouring transformer blocks that are one fragment."""
    fragment_groups: int = Field(default=1, ge=1, le=10_000)
    """Fragments are dealt in turn among so many groups, whose rounds are spread evenly over
    ``sync_every``; 1: all at once; more than there are fragments: each alone."""
    overlap_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Inner steps that go on while a round is under way, before its result is merged; at most
    ``sync_every``, which is a whole round of delay."""
    overlap_mix: float | None = Field(default=None, ge=0, le=1)
    """What a replica keeps of itself where it merges after an overlap, beside the published value;
    None: all that it did meanwhile, added to that value."""
    overlap_eager: bool = False
    """With a whole round of delay (``overlap_steps`` = ``sync_every``): train on from where this
    replica's own push would lead, until the round tells what all pushes lead to."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Inner steps of the synchronous phase before the first local one."""
    min_replicas: int = Field(default=1, ge=1, le=10_000)
    """No round closes with fewer pushes; ``asynchronous``: while fewer replicas hold a lease."""
    quorum: int | None = Field(default=None, ge=1, le=10_000)
    """A round closes once so many replicas have pushed in time, after ``grace_seconds``; who comes
    later counts in the next (``late``). None: it waits for everyone who takes part."""
    grace_seconds: float | None = Field(default=None, ge=0, le=86400)
    """How long a round with its quorum goes on waiting for the others. None: for half of what
    ``overlap_steps`` hides of it, so that it costs nobody time; without overlap not at all."""
    asynchronous: bool = False
    """No round waits: each push is an outer step, and the momentum moves once in a window of them
    (Delayed Nesterov, 2401.09135)."""
    window: int | None = Field(default=None, ge=1, le=10_000)
    """With ``asynchronous``: N, the pushes of a window; None: as many as replicas take part when it
    begins."""
    expected_replicas: int | None = Field(default=None, ge=1, le=10_000)
    """How many replicas share the token budget; the first round waits for so many, as long as its
    deadline allows. None: min_replicas."""
    max_replicas: int | None = Field(default=None, ge=1, le=10_000)
    """No more replicas have a lease at a time; who comes then waits for a place. None: any number.
    """
    token_budget: int | None = Field(default=None, ge=1)
    """The run ends at the round in which this many tokens are committed."""
    durability: Durability = "commit"
    """``commit``: a round is on the disk before it is published, which is then never lost.
    ``async``: it is published at once and written behind; one revision of a fragment may be lost.
    """
    outer: OuterSettings = OuterSettings()
    penalty: PenaltySettings = PenaltySettings()
    late: LateSettings = LateSettings()
    stragglers: StragglerSettings = StragglerSettings()
    codec: CodecSettings = CodecSettings()
    timeouts: TimeoutSettings = TimeoutSettings()

    @property
    def replicas(self) -> int:
        """The number of replicas that schedules count with."""
        return self.expected_replicas or self.min_replicas

    @property
    def age_max(self) -> int:
        """Rounds that a push's base may lie behind (S)."""
        if self.late.age_max is not None:
            return self.late.age_max
        return 0 if self.quorum is None and not self.asynchronous else LATE_AGE_MAX

    @model_validator(mode="after")
    def _overlap_within_a_round(self) -> Self:
        if self.overlap_steps > self.sync_every:
            raise ValueError(
                f"overlap_steps ({self.overlap_steps}) must be at most sync_every "
                f"({self.sync_every}): a fragment has one round under way at a time."
            )
        return self

    @model_validator(mode="after")
    def _replicas_in_order(self) -> Self:
        most = self.max_replicas
        for name in ("min_replicas", "quorum", "expected_replicas"):
            if most is not None and (getattr(self, name) or 0) > most:
                raise ValueError(
                    f"max_replicas ({most}) must be at least {name} ({getattr(self, name)})."
                )
        return self

    @model_validator(mode="after")
    def _grace_after_a_quorum(self) -> Self:
        if self.quorum is None and self.grace_seconds is not None:
            raise ValueError(
                f"grace_seconds ({self.grace_seconds:g}) begins when the quorum is in: set quorum."
            )
        return self

    @model_validator(mode="after")
    def _no_round_waits(self) -> Self:
        if self.window is not None and not self.asynchronous:
            raise ValueError(f"window ({self.window}) is for asynchronous runs: set asynchronous.")
        for name in ("quorum", "min_round_steps", "overlap_eager"):
            if self.asynchronous and getattr(self, name):
                raise ValueError(
                    f"{name} is for rounds that wait; asynchronous has none: unset it."
                )
        return self

    @model_validator(mode="after")
    def _by_time_or_by_steps(self) -> Self:
        if self.sync_seconds is None and self.min_round_steps:
            raise ValueError(
                f"min_round_steps ({self.min_round_steps}) is for rounds by time: set sync_seconds."
            )
        if self.sync_seconds is not None and self.overlap_eager:
            raise ValueError(
                "overlap_eager needs a whole round of delay, and with sync_seconds nobody knows "
                "how many steps that is: set one of them."
            )
        return self

    @model_validator(mode="after")
    def _eager_for_a_round(self) -> Self:
        if self.overlap_eager and self.overlap_steps != self.sync_every:
            raise ValueError(
                f"overlap_eager needs a whole round of delay: set overlap_steps "
                f"({self.overlap_steps}) to sync_every ({self.sync_every})."
            )
        if self.overlap_eager and self.overlap_mix is not None:
            raise ValueError("overlap_eager and overlap_mix are two ways to merge: set one.")
        return self

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = cast(dict[str, Any], data)
        return under(PRESETS.get(str(given.get("strategy", "edit")), {}), given)


LIVE: frozenset[str] = frozenset(
    {
        "sync_every",
        "sync_seconds",
        "min_round_steps",
        "quorum",
        "grace_seconds",
        "late",
        "stragglers",
        "outer",
        "penalty",
        "codec",
    }
)
"""What may change while the run goes on, from the next round."""


def changed(settings: RunSettings, patch: dict[str, Any]) -> RunSettings:
    """Return the settings with a live change (nested, partial) applied.

    Raises:
        ConfigError: a key is unknown or may not change while the run goes on, or a value is out
            of range; the message names it.
    """
    for key in sorted(patch.keys() - LIVE):
        if key not in RunSettings.model_fields:
            live = [path for path in paths_in(RunSettings) if path.partition(".")[0] in LIVE]
            raise ConfigError(unknown(key, sorted(LIVE), elsewhere=live))
        raise ConfigError(
            f"{key} is settled when a run is created, and stays; what may change after that: "
            f"{', '.join(sorted(LIVE))}."
        )
    return overlaid(settings, patch)


def overlaid(
    settings: RunSettings, patch: dict[str, Any], name: Callable[[str], str] = str
) -> RunSettings:
    """Return the settings with any nested, partial change, as another run may have them.

    ``name``: from a key's dotted path to what the reader knows it by, such as a flag.

    Raises:
        ConfigError: a key is unknown, or a value is out of range; the message names it.
    """
    try:
        return RunSettings.model_validate(under(settings.model_dump(), patch))
    except ValidationError as error:
        raise ConfigError(sentence(error, RunSettings, name)) from None
