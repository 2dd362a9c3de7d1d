"""What the control plane says of a run, for tests that ask none."""

from __future__ import annotations

from typing import Any

from syncline_proto.rest import Registration, RunState, RunView
from syncline_proto.settings import RunSettings


def running(name: str, **shown: Any) -> RunView:
    """A run with the settings it has by default; ``shown`` is what is seen of it."""
    return RunView(
        name=name,
        state=RunState.RUNNING,
        settings=RunSettings(),
        settings_version=1,
        created_at=0.0,
        **shown,
    )


def registration(replica: str) -> Registration:
    """A first lease in the run ``run``, where no sync service is known yet."""
    return Registration(
        replica=replica,
        incarnation=1,
        ordinal=0,
        lease_s=10.0,
        heartbeat_s=1.0,
        run=running("run"),
        sync_services=[],
    )
