"""The settings of a merge: the outer optimizer, whose push counts how much, what age leaves of it.

They are the sync service's alone to follow, and may change while a run goes on.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from syncline_proto.section import Section


class DirectionSettings(Section):
    """HeLoCo (2606.00271): what points elsewhere than the outer momentum is turned."""

    enabled: bool = False
    agree: float = Field(default=0.2, ge=0, le=1)
    """A cosine to the momentum from which on a tensor's pseudo-gradient stays as it is."""
    suppress: float = Field(default=0.5, ge=0, le=10)
    """How much of what points against the momentum is taken away."""
    suppress_max: float = Field(default=0.5, ge=0, le=1)
    """At most this share of it."""
    rotate: float = Field(default=1.0, ge=0, le=10)
    """How far what is beside the momentum is turned towards it."""
    kappa: float = Field(default=3.0, ge=0, le=1000)
    """Less of both, the longer the momentum is: times ||D|| / (||D|| + kappa ||m||)."""


class OuterSettings(Section):
    """The outer optimizer: SGD with Nesterov momentum in PyTorch's form (DiLoCo, 2311.08105)."""

    lr: float = Field(default=0.7, ge=0, le=10)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    clip: float | None = Field(default=10.0, gt=0)
    """Upper bound of the merged pseudo-gradient's norm, per fragment (EDiT's phi); None: none."""
    average: Literal["mean", "radial"] = "mean"
    """How the pushes of a round become one: their weighted mean; or, tensor by tensor, the mean of
    their directions at the mean of their norms (RDA, 2604.21428), but for embeddings."""
    direction: DirectionSettings = DirectionSettings()
    restart_every: int | None = Field(default=None, ge=1, le=1_000_000)
    """The momentum begins anew, from 0, with every so many rounds; None: never."""
    age_guard: float | None = Field(default=2.0, gt=0, le=100)
    """Factor of the bound on lr that follows from the mean age of pushes' bases, where rounds do
    not wait (``asynchronous``) and that age is over one round; None: no bound."""


class PenaltySettings(Section):
    """EDiT's pseudo-gradient penalty (2412.07210): who counts, and for how much."""

    enabled: bool = True
    ema: float = Field(default=0.02, ge=1e-9, le=1)
    """alpha: the weight of a new norm in the running mean and variance. Of one much smaller the
    bias that is corrected, (1 - alpha)^k, would round to 1."""
    z_max: float = Field(default=3.0, gt=0)
    """delta: a z-score above it is an anomaly, if the norm is also over ``ratio_min`` means."""
    ratio_min: float = Field(default=2.0, ge=1)
    """r: 1 is the paper's rule."""
    ratio_max: float = Field(default=10.0, gt=1)
    """R: a norm over this many pooled means is an anomaly whatever its z."""
    norm_max: float | None = Field(default=None, gt=0)
    """G_max: a norm over it is an anomaly from the first round on."""
    detector_rounds: int = Field(default=10, ge=1)
    """Accepted pushes of a replica before its z-score counts."""
    temperature: float | None = Field(default=None, gt=0)
    """T of exp(-G/T); None means ``kappa`` times the mean norm, 1 is the paper's."""
    kappa: float = Field(default=0.5, gt=0)
    step_power: float = Field(default=0.0, ge=0, le=2)
    """rho: weights also grow with (inner steps / sync_every) ** rho."""


class LateSettings(Section):
    """Pushes whose round has closed without them, and which count in a later one."""

    age_max: int | None = Field(default=None, ge=0, le=1_000)
    """S: so many rounds may a push's base lie behind (``asynchronous``: of the window's N pushes,
    beyond N - 1); older ones are moved onto the newest revision by their replica. None: 2 where
    rounds close without everyone (``quorum``, ``asynchronous``), else 0."""
    rule: Literal["polynomial", "cosine"] = "polynomial"
    """What age leaves of a push's weight: (1 + age)^-power (FedAsync, 1903.03934), or
    e^(-decay age) times a cosine that closes just past ``age_max`` (CGAD, 2605.09126)."""
    power: float = Field(default=0.5, ge=0, le=10)
    decay: float = Field(default=0.2, ge=0, le=10)
