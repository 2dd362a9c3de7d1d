"""Runs that have gone on where we have nothing of them: somebody else's, or our folder is another.

Pure but for what it is shown; who serves a run to nobody, and tells of it, is the residence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from syncline_proto.errors import StoreDamaged
from syncline_proto.rest import Membership, RunMembership
from syncline_sync.files import MEND
from syncline_sync.run import RunHost

FALLEN_MAX = 1
"""Revisions by which a fragment falls back, and its replicas hear of that."""


def has_gone_on(run: RunMembership) -> bool:
    """Whether every fragment has had a round, so that every service has something of the run."""
    return run.revision > (run.origin.revision if run.origin else 0)


def is_astray(host: RunHost, run: RunMembership) -> bool:
    """Whether we have nothing of a run that has gone on."""
    return host.layout is None and has_gone_on(run)


def missing(host: RunHost, run: RunMembership, root: Path) -> StoreDamaged | None:
    """What is told where a run has gone on of which, or of whose fragment, nothing is here.

    To begin it anew would lose it, or mix two models.
    """
    if is_astray(host, run):
        return StoreDamaged(
            f"it has gone on, and there is nothing of it in {root}. Start this sync service on the "
            "folder (--data) that has it."
        )
    lost = host.unbegun if has_gone_on(run) else None
    if lost is not None:
        return StoreDamaged(
            f"it has gone on, and there is nothing of its fragment {lost} in {root}. {MEND}"
        )
    return None


def is_older(host: RunHost, run: RunMembership) -> bool:
    """Whether the control plane has heard of revisions that are lost, and nobody here knows of it.

    It hears of a round only once that is published. So the folder is a copy from before the last
    rounds, and its word came after that was read. Of a fall-back it may not have heard.
    """
    runners = host.runners.values()
    newest = min((runner.latest.revision for runner in runners), default=run.revision)
    return max(newest + FALLEN_MAX, host.heard) < run.revision


def without_others(
    membership: Membership, hosts: Mapping[str, RunHost], stored: frozenset[str]
) -> Membership:
    """What the word says to a service whose name another has: of runs that it has something of.

    The others are that service's, and are no damage here.

    Args:
        membership: the control plane's word.
        hosts: the runs in memory, by name.
        stored: the names of runs that have a folder in the store.
    """

    def is_ours(run: RunMembership) -> bool:
        host = hosts.get(run.run)
        return run.run in stored if host is None else not is_astray(host, run)

    return membership.model_copy(update={"runs": [r for r in membership.runs if is_ours(r)]})
