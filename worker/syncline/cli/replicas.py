"""``syncline replicas``: who is alive, who takes part, and asking one to leave."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import typer

from syncline.cli import output
from syncline.cli.options import (
    DEFAULT_CONTROL,
    Control,
    Json,
    MaybeRunName,
    ReplicaName,
    RunName,
    Token,
    connect,
    example,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from syncline.launch.client import OperatorClient
    from syncline_proto.rest import Progress, ReplicaView

app = typer.Typer(
    no_args_is_help=True,
    help="""See a run's replicas, and ask one to leave.

    \b
    Examples:
      syncline replicas ls my-run
      syncline replicas drain my-run replica-1
    """,
)


@app.command("ls")
def list_replicas(
    run: MaybeRunName = None,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List replicas: who is alive, and who takes part.

    Alive is who holds a lease; taking part is who was in the last round, or
    where each push is a round (asynchronous) in any.

    \b
    Examples:
      syncline replicas ls
      syncline replicas ls my-run --json
    """
    with connect(control, token) as client:
        names = [run] if run else [one.name for one in client.runs()]
        found = {name: by_name(client.replicas(name)) for name in names}
    output.show(found, as_json, lambda: replicas_table(found))


def _asking(act: Literal["drain", "kick"], answer: str, still: str) -> Callable[..., None]:
    """Return the command that asks one replica to ``act``; ``answer`` says what comes of it.

    ``still``: that the run stands still, where too few are left.
    """

    def command(
        run: RunName,
        replica: ReplicaName,
        control: Control = DEFAULT_CONTROL,
        token: Token = None,
        as_json: Json = False,
    ) -> None:
        from syncline_proto.errors import SynclineError
        from syncline_proto.rest import ReplicaState

        unknown = ""
        with connect(control, token) as client:
            ask = client.drain if act == "drain" else client.kick
            state = ask(run, replica).state
            try:
                lacking = _lacking(client, run)
            except SynclineError as error:  # what was asked for is done all the same
                lacking, unknown = None, error.message
        done = {"run": run, "replica": replica, "act": act, "state": state, "lacking": lacking}
        if act == "kick" and state is not ReplicaState.KICKED:  # it had left, or was lost
            said = "{replica} held no lease of {run}: its name is not barred."
        else:
            said = answer
        words = [said.format(run=run, replica=replica)]
        if lacking:
            joins = "another one joins" if lacking == 1 else f"{lacking} more join"
            words.append(f"{still.format(run=run)} until {joins}.")
        if unknown:
            words.append(f"Nobody could say whether enough replicas stay: {unknown}")
        output.show(done, as_json, lambda: " ".join(words))

    return command


def _lacking(client: OperatorClient, run: str) -> int:
    """How many replicas a run that goes on lacks of its minimum, without those that are to leave.

    Nobody starts one in the place of who was sent away, unless somebody asks for that.
    """
    from syncline_proto.rest import ReplicaState

    view = client.run(run)
    staying = sum(one.state is ReplicaState.ALIVE for one in client.replicas(run))
    return 0 if view.ended_at is not None else max(0, view.settings.min_replicas - staying)


app.command(
    "drain",
    help=example(
        "Ask a replica to push what it did and leave.",
        "syncline replicas drain my-run replica-1",
    ),
)(
    _asking(
        "drain",
        "{replica} is asked to push what it did and leave {run}.",
        "Then {run} stands still",
    )
)

app.command(
    "kick",
    help=example(
        "Take a replica's lease away at once: its next push is refused.",
        "syncline replicas kick my-run replica-1",
    ),
)(_asking("kick", "{replica} no longer holds a lease of {run}.", "{run} stands still"))


def by_name(replicas: Sequence[ReplicaView]) -> list[ReplicaView]:
    """Return replicas in the order of their names, replica-2 before replica-10."""

    def key(one: ReplicaView) -> list[tuple[bool, int, str]]:
        parts = re.findall(r"[0-9]+|[^0-9]+", one.replica)
        return [(False, int(p), p) if p.isdecimal() else (True, 0, p) for p in parts]

    return sorted(replicas, key=key)


def replicas_table(
    found: Mapping[str, Sequence[ReplicaView]], empty: str = "There are no replicas yet."
) -> RenderableType:
    """Return one line for each replica; ``empty`` where there are none."""
    columns = ("run", "replica", "state", "taking part", ">ranks", "phase", ">inner step", ">loss")
    more = (">tokens/s", ">pace", ">exposed sync", ">weight", ">z", ">excluded", ">lease left")
    rows = (_row(run, one) for run, replicas in found.items() for one in replicas)
    spare = ("pace", "z", "ranks", "weight", "lease left", "exposed sync", "excluded", "inner step")
    return output.table(
        (*columns, *more),
        rows,
        empty=empty,
        spare=(*spare, "tokens/s", "phase", "loss", "taking part", "state", "run"),
    )


def _row(run: str, one: ReplicaView) -> tuple[object, ...]:
    """One replica's cells; what only somebody alive does or has is missing for all others."""
    from syncline_proto.rest import ReplicaState

    last = one.progress
    alive = one.state in (ReplicaState.ALIVE, ReplicaState.DRAINING)
    taking_part = "yes" if one.taking_part else "no"
    trains = alive and last.phase != "paused"
    return (
        run,
        one.replica,
        one.state.value,
        taking_part if alive else None,
        one.ranks,
        last.phase if alive else None,
        last.inner_step,
        output.decimals(last.loss),
        output.count(last.tokens_per_second) if trains else None,
        _pace(one) if alive else None,
        output.share(exposed_share(last)),
        output.decimals(one.weight) if alive else None,
        output.decimals(one.z, 1) if alive else None,
        one.exclusions,
        output.duration(max(0.0, one.lease_left_s)) if alive else None,
    )


def _pace(one: ReplicaView) -> str:
    """How fast it is beside the others, that this is too slow, and what it makes of a round."""
    said = output.decimals(one.pace, 2)
    if one.straggles:
        said += ", straggles"
    return f"{said}, {100 * one.step_share:.0f} % of the steps" if one.step_share < 1 else said


def exposed_share(progress: Progress) -> float | None:
    """Return the part of its time that training waited for synchronisation, 0 to 1."""
    return progress.exposed_sync_s / progress.wall_s if progress.wall_s > 0 else None
