"""``syncline runs``: look at runs, create them, and move them along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from syncline.cli import output
from syncline.cli.options import (
    DEFAULT_CONTROL,
    Control,
    Json,
    MaybeJobFile,
    RunName,
    RunOverrides,
    Token,
    connect,
    example,
)
from syncline.cli.settings import settings_in_words, what_changed
from syncline.launch.words import outer_rounds, way_on
from syncline_proto.names import EVENTS_MAX, ROUNDS_MAX, RUN_DAMAGED

if TYPE_CHECKING:
    from rich.console import RenderableType

    from syncline.launch.client import OperatorClient
    from syncline_proto.rest import Event, RunView

app = typer.Typer(
    no_args_is_help=True,
    help="""Look at runs, create them, and move them along.

    \b
    Examples:
      syncline runs ls
      syncline runs show my-run
      syncline runs stop my-run
    """,
)


@app.command("ls")
def list_runs(
    control: Control = DEFAULT_CONTROL, token: Token = None, as_json: Json = False
) -> None:
    """List the runs that the control plane keeps.

    \b
    Examples:
      syncline runs ls
      syncline runs ls --json
    """
    with connect(control, token) as client:
        runs = client.runs()
    output.show(listed(runs), as_json, lambda: runs_table(runs))


@app.command("show")
def show_run(
    run: RunName, control: Control = DEFAULT_CONTROL, token: Token = None, as_json: Json = False
) -> None:
    """Show one run: where it stands, damage, and its settings.

    \b
    Examples:
      syncline runs show my-run
      syncline runs show my-run --json
    """
    with connect(control, token) as client:
        view = client.run(run)
        damage = [] if as_json else damaged_runs(client, [view])
    output.show(view, as_json, lambda: output.facts(run_facts(view, damage)))


@app.command("create")
def create_run(
    job: MaybeJobFile = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="RUN", help="Its name, instead of the file's."),
    ] = None,
    overrides: RunOverrides = None,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Create a run before any replica joins it.

    Replicas create their run by themselves; this is for runs whose replicas start elsewhere. A job
    whose model cannot be built is refused; so is, later, a replica with another model.
    Without a job it is one for training loops of your own, with the settings of a job's [run].

    \b
    Examples:
      syncline runs create job.toml
      syncline runs create job.toml --name second --set run.sync_every=128
      syncline runs create --name my-run --set sync_every=32 --set codec.up=int8
    """
    from syncline.cli.creating import of_job, of_settings
    from syncline.cli.train import teller

    given = overrides or []
    say = teller(as_json)
    asked = of_settings(name, given) if job is None else of_job(job, name, given, say)
    with connect(control, token) as client:
        there = _is_there(client, asked.name)
        view = client.create_run(asked)
    done = "exists already, with these settings" if there else "is created"
    output.show(view, as_json, lambda: f"The run {view.name} {done}.")


def _moving(act: str) -> Callable[..., None]:
    """Return the command that moves a run along."""

    def command(
        run: RunName,
        control: Control = DEFAULT_CONTROL,
        token: Token = None,
        as_json: Json = False,
    ) -> None:
        with connect(control, token) as client:
            before = client.run(run)
            view = client.move_run(run, act)
        already = " already" if view.state is before.state else ""
        output.show(view, as_json, lambda: f"{view.name} is {view.state.value}{already}.")

    return command


for _act, _what in (
    ("pause", "Pause a run: its replicas finish their inner step and wait."),
    ("resume", "Let a paused run go on."),
    ("stop", "End a run for good: its replicas take its last revision and leave."),
):
    app.command(_act, help=example(_what, f"syncline runs {_act} my-run"))(_moving(_act))


@app.command("scale")
def scale_run(
    run: RunName,
    replicas: Annotated[
        int | None,
        typer.Argument(metavar="REPLICAS", min=1, max=10_000, help="How many there should be."),
    ] = None,
    whoever_comes: Annotated[
        bool, typer.Option("--any", help="Nobody says any more: as many as come.")
    ] = False,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Say how many replicas a run should have.

    From its min_replicas to its max_replicas. `syncline up` starts and ends its own to make it so,
    and `syncline scaler` those of Compose or Kubernetes: those that are too many push what they
    did, give their data back and leave.

    \b
    Examples:
      syncline runs scale my-run 4
      syncline runs scale my-run --any
    """
    from syncline_proto.errors import ConfigError

    if (replicas is None) is not whoever_comes:
        ways = f"a number, as in `syncline runs scale {run} 4`, or --any"
        both = "" if replicas is None else ", not both"
        raise ConfigError(f"Say how many replicas there should be: {ways}{both}.")
    with connect(control, token) as client:
        view = client.scale(run, replicas)
    output.show(view, as_json, lambda: _wanted(view))


@app.command("set")
def change_settings(
    run: RunName,
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE", help="Settings and their new values.")
    ],
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Change live settings of a run, from its next round on.

    What may change: sync_every, sync_seconds, min_round_steps, quorum, grace_seconds, late.*,
    stragglers.*, outer.*, penalty.*, codec.*; all else is settled when the run is created. A job's
    file has them in [run], and so run. may stand before each.

    \b
    Examples:
      syncline runs set my-run outer.lr=0.5
      syncline runs set my-run sync_every=128 penalty.z_max=4
      syncline runs set my-run sync_seconds=300
    """
    from syncline.cli.creating import values_of

    patch = values_of(changes, flag="")
    with connect(control, token) as client:
        before = client.run(run)
        view = client.change_settings(run, patch)
    output.show(view, as_json, lambda: what_changed(before, view))


def _wanted(run: RunView) -> str:
    alive = f"{run.replicas_alive} {'is' if run.replicas_alive == 1 else 'are'} alive"
    if run.replicas_wanted is None:
        return f"{run.name} has as many replicas as come; {alive}."
    many = "1 replica" if run.replicas_wanted == 1 else f"{run.replicas_wanted} replicas"
    if run.replicas_wanted == run.replicas_alive:
        return f"{run.name} should have {many}; {alive}."
    who = "`syncline up`, or a `syncline scaler`, makes it so for those that it starts"
    return f"{run.name} should have {many}; {alive}. {who}; others are started and ended by hand."


def listed(runs: Sequence[RunView]) -> list[dict[str, object]]:
    """As the control plane lists them: without their jobs."""
    return [run.model_dump(mode="json", exclude={"job"}) for run in runs]


def runs_table(runs: Sequence[RunView]) -> RenderableType:
    """Return one line for each run, and what lets paused ones go on."""
    from rich.console import Group

    columns = ("run", "state", ">alive", ">taking part", ">revision", ">excluded")
    rows = (
        (
            run.name,
            state_of(run),
            run.replicas_alive,
            run.replicas_taking_part,
            run.revision,
            run.exclusions,
            output.count(run.committed_tokens),
            output.share(budget_share(run)),
            output.decimals(run.loss),
        )
        for run in runs
    )
    made = output.table(
        (*columns, ">tokens", ">of budget", ">loss"),
        rows,
        empty="There are no runs yet.",
        spare=("excluded", "loss", "revision", "tokens", "taking part", "alive", "of budget"),
    )
    paused = [run.name for run in runs if _is_paused(run)]
    hint = way_on(paused[0] if len(paused) == 1 else "NAME")
    return Group(made, f"paused; {hint}") if paused else made


def run_facts(run: RunView, damage: Sequence[Event] = ()) -> list[tuple[str, object]]:
    """Return where a run stands, and its settings, as names and values."""
    budget = run.settings.token_budget
    of_budget = f" of {output.count(budget)}" if budget else ""
    state = state_of(run)
    facts: list[tuple[str, object]] = [
        ("run", run.name),
        ("state", f"{state}; {way_on(run.name)}" if _is_paused(run) else state),
        *(("damage", event.message) for event in damage),
        ("replicas", _replicas(run)),
        ("tokens", output.count(run.committed_tokens) + of_budget),
        ("revision", run.revision),
        ("rounds", _rounds(run)),
        ("excluded", f"{run.exclusions} pushes"),
        ("loss", output.decimals(run.loss)),
        ("settings version", run.settings_version),
    ]
    if run.origin is not None:
        facts.append(("began from", f"{run.origin.checkpoint}, revision {run.origin.revision}"))
    return facts + list(settings_in_words(run.settings).items())


def state_of(run: RunView) -> str:
    """Return the run's state, and that too few have joined, or since when nobody trains it."""
    if run.idle_since is not None:
        return f"{run.state.value}, idle since {output.clock(run.idle_since)}"
    if run.waits_for != "replicas":
        return run.state.value
    there = f", {run.replicas_alive} of min_replicas {run.settings.min_replicas}"
    return f"{run.state.value}, waits for replicas{there if run.replicas_alive else ''}"


def _replicas(run: RunView) -> str:
    there = f"{run.replicas_alive} alive, {run.replicas_taking_part} taking part"
    return there if run.replicas_wanted is None else f"{there}, {run.replicas_wanted} wanted"


def _rounds(run: RunView) -> str:
    """Outer rounds of each fragment; of a run that began from a checkpoint, its own first."""
    rounds = outer_rounds(run.revision, run.settings.warmup_steps)
    if run.origin is None:
        return f"{rounds} of each fragment"
    before = outer_rounds(run.origin.revision, run.settings.warmup_steps)
    return f"{max(0, rounds - before)} of each fragment, after {before} until the checkpoint"


def _is_paused(run: RunView) -> bool:
    return run.state.value == "paused"


def damaged_runs(client: OperatorClient, runs: Sequence[RunView]) -> list[Event]:
    """What was told of damage to runs that have not ended, and have not gone on since then."""
    going = {run.name for run in runs if run.ended_at is None}
    events = client.events(None, None, EVENTS_MAX, RUN_DAMAGED)
    newest = {one.run: one for one in events if one.run in going}
    return [one for name, one in newest.items() if name and not _went_on(client, name, one.id)]


def _went_on(client: OperatorClient, run: str, event: int) -> bool:
    """Whether each fragment has had a round since then; where one was set or stands is none.

    Other sync services may close rounds of their fragments while one of them serves none.
    """
    rounds = client.rounds(run, ROUNDS_MAX)
    since = [one for one in rounds if one.after_event >= event and one.kind != "parameters"]
    return bool(since) and {one.fragment for one in since} == {one.fragment for one in rounds}


def budget_share(run: RunView) -> float | None:
    """Return the part of the token budget that is committed, 0 to 1; None without a budget."""
    budget = run.settings.token_budget
    return min(1.0, run.committed_tokens / budget) if budget else None


def _is_there(client: OperatorClient, name: str) -> bool:
    from syncline_proto.errors import RunUnknown

    try:
        client.run(name)
    except RunUnknown:
        return False
    return True
