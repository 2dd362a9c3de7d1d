"""``syncline status``, ``events`` and ``rounds``: what goes on, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from syncline.cli import output, replicas, runs
from syncline.cli.options import (
    DEFAULT_CONTROL,
    Control,
    Json,
    MaybeRunName,
    RunName,
    Token,
    connect,
)
from syncline.faults import IN_SHELLS, told
from syncline_proto.errors import Unreachable
from syncline_proto.names import EVENTS_MAX, ROUNDS_MAX
from syncline_proto.rest import ReplicaState

if TYPE_CHECKING:
    from rich.console import RenderableType

    from syncline.launch.client import OperatorClient
    from syncline_proto.reports import RoundReport
    from syncline_proto.rest import (
        Event,
        ReplicaView,
        RunView,
        SyncEndpoint,
    )


def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again until Ctrl+C.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", min=0.2, max=3600, help="Seconds between two looks."
        ),
    ] = 1.0,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show runs, replicas and sync services at one glance.

    \b
    Examples:
      syncline status
      syncline status --watch
      syncline status --json
    """
    with connect(control, token) as client:
        if not watch:
            seen = _look(client)
            output.show(_plain(seen), as_json, lambda: _picture(seen))
        elif as_json:
            for now in _looks(client, every):
                if isinstance(now, Unreachable):
                    output.note(told(now, IN_SHELLS))
                else:
                    output.show_line(_plain(now))
        else:
            _watch(client, every)


def events(
    run: MaybeRunName = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as they happen, until Ctrl+C.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, max=EVENTS_MAX, help="The newest so many."
        ),
    ] = 50,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show what happened, in plain words.

    Of one run: its own events and those of the sync services, which are of no run, from its
    creation to its end. With --follow and --json each event is one line of JSON.

    \b
    Examples:
      syncline events
      syncline events my-run --follow
      syncline runs events my-run
    """
    with connect(control, token) as client:
        found = client.events(run, None, limit)
        if not follow:
            output.show(found, as_json, lambda: _events_table(found))
            return
        for event in found:
            _tell(event, as_json)
        for event in client.follow(run, found[-1].id if found else 0):
            _tell(event, as_json)


def rounds(
    run: RunName,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            metavar="N",
            min=1,
            max=ROUNDS_MAX,
            help="The newest so many; each is of one fragment.",
        ),
    ] = 20,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show the last rounds: who was merged, and who was not.

    Each is of one fragment; they stand in the order of their commits.

    \b
    Examples:
      syncline rounds my-run
      syncline rounds my-run -n 100 --json
    """
    with connect(control, token) as client:
        found = client.rounds(run, limit)
    found.sort(key=lambda one: one.committed_at)  # several services tell of theirs in turn
    output.show(found, as_json, lambda: _rounds_table(found))


def _look(client: OperatorClient) -> dict[str, Any]:
    """Return all that the control plane knows of what goes on now."""
    found = client.runs()
    return {
        "control": client.url,
        "runs": found,
        "replicas": {
            run.name: replicas.by_name(client.replicas(run.name))
            for run in found
            if run.ended_at is None
        },
        "sync_services": client.sync_services(),
        "damaged": runs.damaged_runs(client, found),
    }


def _plain(seen: dict[str, Any]) -> dict[str, Any]:
    return {**seen, "runs": runs.listed(seen["runs"])}


def _picture(seen: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return Group(
        runs.runs_table(seen["runs"]),
        "",
        replicas.replicas_table(seen["replicas"], _nobody(seen["runs"])),
        *_first_rounds(seen),
        *(Text(_damage(event)) for event in seen["damaged"]),
        "",
        _services_table(seen["sync_services"]),
        *_away(seen["sync_services"], any(run.ended_at is None for run in seen["runs"])),
        "",
        Text(f"The live page is at {seen['control'].partition(',')[0]}/"),
    )


def _nobody(found: Sequence[RunView]) -> str:
    """Say that there is no replica; those of runs that have ended are elsewhere."""
    if any(run.ended_at is not None and run.fragment_rounds for run in found):
        return "No replica is alive; `syncline replicas ls` lists the others."
    return "No replica is alive."


def _first_rounds(seen: dict[str, Any]) -> Iterator[str]:
    """Say whom a run's first round waits for; who has joined and is gone again it does not."""
    for run in seen["runs"]:
        settings = run.settings
        missing = settings.replicas - sum(map(_has_come, seen["replicas"].get(run.name, ())))
        begins = run.state.value == "running" and run.replicas_alive and not run.fragment_rounds
        if begins and missing > 0:
            name = "expected_replicas" if settings.expected_replicas else "min_replicas"
            waits = f"waits for {missing} more of {name} {settings.replicas}"
            yield f"{run.name}: the first round {waits}"


def _has_come(replica: ReplicaView) -> bool:
    """Whether it is here, or has been; who was refused at its join has not."""
    is_alive = replica.state in (ReplicaState.ALIVE, ReplicaState.DRAINING)
    return is_alive or replica.progress.phase != "joining"


def _damage(event: Event) -> str:
    said = f"At {output.clock(event.time)}: {event.message}"
    return (
        f"{said} This stands here until every fragment has had a round again; whether it is served "
        "by now, the log of its sync service says, and its figure syncline_run_damaged."
    )


def _watch(client: OperatorClient, every: float) -> None:
    """Draw the picture over and over: in one place on a terminal, one below the other in a log."""
    from rich.live import Live

    from syncline.cli.window import Window

    console = output.console()
    pictures = _pictures(client, every)
    if not console.is_terminal:
        for picture in pictures:
            console.print(picture)
    with Live(Window(next(pictures)), console=console, auto_refresh=False) as live:
        for picture in pictures:
            live.update(Window(picture), refresh=True)


def _pictures(client: OperatorClient, every: float) -> Iterator[RenderableType]:
    from rich.text import Text

    for now in _looks(client, every):
        if isinstance(now, Unreachable):
            yield Text(told(now, IN_SHELLS), style="yellow")
        else:
            yield _picture(now)


def _looks(client: OperatorClient, every: float) -> Iterator[dict[str, Any] | Unreachable]:
    """Yield what goes on, for ever; a control plane that was there may go and come back."""
    yield _look(client)
    while True:
        time.sleep(every)
        try:
            now = _look(client)
        except Unreachable as away:
            now = away
        yield now


def _services_table(services: Sequence[SyncEndpoint]) -> RenderableType:
    rows = (
        (one.name, one.address, f"{one.index} of {one.shards}", "yes" if one.alive else "no")
        for one in services
    )
    columns = ("sync service", "address", "index", "alive")
    return output.table(columns, rows, empty="No sync service has announced itself yet.")


def _away(services: Sequence[SyncEndpoint], goes_on: bool) -> Iterator[str]:
    """Say what it means that one is away; ``goes_on``: there is a run that has not ended."""
    away = [one.name for one in services if not one.alive]
    if not away:
        return
    is_away, its, it = ("is", "its", "it") if len(away) == 1 else ("are", "their", "them")
    waits = f", and rounds of {its} fragments wait for that" if goes_on else ""
    until = "" if goes_on else " before the next run"
    yield f"{', '.join(away)} {is_away} away{waits}; start {it} again{until}."


def _events_table(found: Sequence[Event]) -> RenderableType:
    rows = (
        (output.clock(event.time), event.run, event.replica, event.kind, event.message)
        for event in found
    )
    columns = ("time", "run", "replica", "kind", "what happened")
    return output.table(
        columns, rows, empty="Nothing has happened yet.", spare=("kind",), fold="what happened"
    )


def _tell(event: Event, as_json: bool) -> None:
    if as_json:
        output.show_line(event)
        return
    where = " ".join(name for name in (event.run, event.replica) if name)
    output.console().print(
        f"{output.clock(event.time)}  {where:24}  {event.kind:18}  {event.message}",
        markup=False,
        soft_wrap=True,
    )


_CLOSED_BY = {"loss": "lost replica"}
"""In words, where the wire's own could be read as something else."""


def _rounds_table(found: Sequence[RoundReport]) -> RenderableType:
    columns = ("time", "fragment", "kind", ">revision", "closed by", ">seconds", ">in")
    rows = (
        (
            output.clock(one.committed_at),
            one.fragment_name,
            one.kind,
            one.revision,
            _CLOSED_BY.get(one.closed_by, one.closed_by),
            output.decimals(one.seconds),
            sum(part.verdict == "accepted" for part in one.contributions),
            ", ".join(f"{p.replica} by {p.age}" for p in one.contributions if p.age),
            ", ".join(p.replica for p in one.contributions if p.verdict == "anomalous"),
            output.decimals(one.effective_sample_size, 2),
            output.decimals(one.merged_norm),
            output.decimals(one.clip_factor),
        )
        for one in found
    )
    more = ("late", "excluded", ">effective", ">norm", ">clip")
    return output.table(
        (*columns, *more),
        rows,
        empty="No round is committed yet.",
        spare=("clip", "norm", "effective", "kind", "seconds", "closed by", "time"),
        fold="excluded",
    )
