"""``syncline replicas``: who is alive, who takes part, and asking one to leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from syncline.cli import output
from syncline.cli.options import (
    DEFAULT_CONTROL,
    Control,
    Json,
    ReplicaName,
    RunName,
    Token,
    connect,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from syncline_proto.rest import Progress, ReplicaView

app = typer.Typer(no_args_is_help=True, help="See a run's replicas, and ask one to leave.")

MaybeRunName = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="The run; all that are there without it.")
]


@app.command("ls")
def list_replicas(
    run: MaybeRunName = None,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List replicas: alive (holds a lease) and taking part (was in the last round) apart.

    \b
    Examples:
      syncline replicas ls
      syncline replicas ls my-run --json
    """
    with connect(control, token) as client:
        names = [run] if run else [one.name for one in client.runs()]
        found = {name: client.replicas(name) for name in names}
    output.show(found, as_json, lambda: replicas_table(found))


@app.command("drain")
def drain_replica(
    run: RunName,
    replica: ReplicaName,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Ask a replica to push what it did and leave.

    \b
    Example:
      syncline replicas drain my-run replica-1
    """
    with connect(control, token) as client:
        client.drain(run, replica)
    done = {"run": run, "replica": replica, "act": "drain"}
    output.show(done, as_json, lambda: f"{replica} is asked to push what it did and leave {run}.")


@app.command("kick")
def kick_replica(
    run: RunName,
    replica: ReplicaName,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Take a replica's lease away at once: its next push is refused.

    \b
    Example:
      syncline replicas kick my-run replica-1
    """
    with connect(control, token) as client:
        client.kick(run, replica)
    done = {"run": run, "replica": replica, "act": "kick"}
    output.show(done, as_json, lambda: f"{replica} no longer holds a lease of {run}.")


def replicas_table(found: Mapping[str, Sequence[ReplicaView]]) -> RenderableType:
    """Return one line for each replica."""
    columns = ("run", "replica", "state", "taking part", ">ranks", "phase", ">steps", ">loss")
    rows = (
        (
            run,
            one.replica,
            one.state.value,
            "yes" if one.taking_part else "no",
            one.ranks,
            one.progress.phase,
            one.progress.inner_step,
            output.decimals(one.progress.loss),
            output.count(one.progress.tokens_per_second),
            output.share(exposed_share(one.progress)),
            output.decimals(one.weight),
            output.decimals(one.z, 1),
            one.exclusions,
            output.duration(max(0.0, one.lease_left_s)),
        )
        for run, replicas in found.items()
        for one in replicas
    )
    more = (">tokens/s", ">exposed sync", ">weight", ">z", ">excluded", ">lease left")
    return output.table((*columns, *more), rows, empty="There are no replicas yet.")


def exposed_share(progress: Progress) -> float | None:
    """Return the part of its time that training waited for synchronisation, 0 to 1."""
    return progress.exposed_sync_s / progress.wall_s if progress.wall_s > 0 else None
