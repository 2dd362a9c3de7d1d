"""Replicas on one machine with more threads together than it has cores, which is told at the join.

Each of them would have PyTorch's threads for all cores, and then they wait for one another's in
every operation. Only tells of it: how many threads a process has is for who starts it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress

import torch
from structlog.typing import FilteringBoundLogger
from torch import nn

from syncline.control import ControlClient
from syncline_proto.errors import SynclineError
from syncline_proto.rest import Registration, ReplicaState, ReplicaView

ALIVE_MAX = 64
"""Of more replicas hardly any share a machine, and their list is long."""


def warn_if_crowded(
    client: ControlClient, me: Registration, ranks: int, model: nn.Module, say: FilteringBoundLogger
) -> None:
    """Say where this replica of so many ``ranks`` and the others here leave each other no core."""
    threads = torch.get_num_threads()
    on_cpu = any(parameter.device.type == "cpu" for parameter in model.parameters())
    if threads == 1 or not on_cpu or me.run.replicas_alive > ALIVE_MAX:
        return
    with suppress(SynclineError):  # whoever is here, it trains
        beside = processes_beside(client.replicas(me.run.name), socket.gethostname(), os.getpid())
        told = crowding(ranks, beside, threads, cores())
        if told is not None:
            say.warning("replica.threads", **told)


def processes_beside(replicas: Iterable[ReplicaView], host: str, pid: int) -> int:
    """How many processes of other replicas are on this host; one in this very process is none."""
    return sum(
        one.ranks
        for one in replicas
        if one.state is ReplicaState.ALIVE and one.host == host and one.pid != pid
    )


def crowding(own: int, beside: int, threads: int, cores: int) -> dict[str, str] | None:
    """What to say of ``own`` processes and those ``beside`` them; None: they leave room."""
    count = own + beside
    if not beside or count * threads <= cores:
        return None
    why = (
        f"{count} processes of this run on this machine share {cores} cores, and this one alone "
        f"takes {threads} threads: they hold one another up at every step"
    )
    share = max(1, cores // count)
    so = f"start each with its part of them: OMP_NUM_THREADS={share}, or train.threads of a job"
    return {"why": why, "so": so}


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
