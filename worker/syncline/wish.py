"""What a user asks to take part in: by arguments, and where these say nothing by the environment.

Asks nobody; whether there is such a run, ``join`` finds out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from syncline.settings import (
    AnchorDevice,
    Environment,
    checked_device,
    checked_name,
    default_replica,
)
from syncline_proto.addresses import bearer_token, control_url
from syncline_proto.settings import RunSettings

CheckJob = Callable[[str, dict[str, Any]], None]
"""Is given the run's name and the job that it keeps; raises where that is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the user asked to take part in."""

    control: str
    token: str | None
    run: str
    replica: str
    settings: RunSettings | None
    """None: whatever the run has."""
    job: dict[str, Any]
    check_job: CheckJob
    anchor_device: AnchorDevice = "cpu"


def wished(
    control: str | None,
    run: str | None,
    replica: str | None,
    settings: RunSettings | None,
    job: dict[str, Any],
    check_job: CheckJob,
    anchor_device: str | None = None,
) -> Wish | None:
    """Return what was asked for, by arguments before the environment; None: to train alone.

    Raises:
        ConfigError: a name, the address, the token or the anchors' device cannot be used.
    """
    env = Environment()
    run = checked_name("run", run or env.run)
    replica = checked_name("replica", replica or env.replica or default_replica())
    device = checked_device(anchor_device or env.anchor_device)
    url = control or env.control
    if url is None:
        return None
    return Wish(
        control=control_url(url),
        token=bearer_token(env.token),
        run=run,
        replica=replica,
        settings=settings,
        job=job,
        check_job=check_job,
        anchor_device=device,
    )
