"""``syncline runs``: look at runs, create them, and move them along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from syncline.cli import output
from syncline.cli.options import (
    DEFAULT_CONTROL,
    Control,
    JobFile,
    Json,
    Overrides,
    RunName,
    Token,
    connect,
    example,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from syncline.launch.client import OperatorClient
    from syncline_proto.rest import RunView

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
    output.show(runs, as_json, lambda: runs_table(runs))


@app.command("show")
def show_run(
    run: RunName, control: Control = DEFAULT_CONTROL, token: Token = None, as_json: Json = False
) -> None:
    """Show one run: where it stands, and its settings.

    \b
    Examples:
      syncline runs show my-run
      syncline runs show my-run --json
    """
    with connect(control, token) as client:
        view = client.run(run)
    output.show(view, as_json, lambda: output.facts(run_facts(view)))


@app.command("create")
def create_run(
    job: JobFile,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="RUN", help="Its name instead of the file's."),
    ] = None,
    overrides: Overrides = None,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Create a run from a job's file, before any replica joins it.

    Replicas create their run by themselves; this is for runs whose replicas start elsewhere.

    \b
    Examples:
      syncline runs create job.toml
      syncline runs create job.toml --name second --set run.sync_every=128
    """
    from syncline.train.config import JobConfig
    from syncline_proto.rest import RunCreate

    made = JobConfig.load(job, [*(overrides or []), *([f"run.name={name}"] if name else [])])
    asked = RunCreate(name=made.run.name, settings=made.settings, job=made.to_job())
    with connect(control, token) as client:
        there = _is_there(client, asked.name)
        view = client.create_run(asked)
    if there and not as_json:
        output.note(f"The run {view.name} exists already, with these settings.")
    output.show(view, as_json, lambda: output.facts(run_facts(view)))


def _moving(act: str) -> Callable[..., None]:
    """Return the command that moves a run along."""

    def command(
        run: RunName,
        control: Control = DEFAULT_CONTROL,
        token: Token = None,
        as_json: Json = False,
    ) -> None:
        with connect(control, token) as client:
            view = client.move_run(run, act)
        output.show(view, as_json, lambda: f"{view.name} is {view.state.value}.")

    return command


for _act, _what in (
    ("pause", "Pause a run: its replicas wait after their next round."),
    ("resume", "Let a paused run go on."),
    ("stop", "End a run for good: its replicas take its last revision and leave."),
):
    app.command(_act, help=example(_what, f"syncline runs {_act} my-run"))(_moving(_act))


@app.command("set")
def change_settings(
    run: RunName,
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings and their new values.")
    ],
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Change live settings of a run, from its next round on.

    What may change: sync_every, outer.*, penalty.*, codec.*

    \b
    Examples:
      syncline runs set my-run outer.lr=0.5
      syncline runs set my-run sync_every=128 penalty.z_max=4
    """
    from syncline.train.reading import apply_overrides

    patch = apply_overrides({}, changes)
    with connect(control, token) as client:
        view = client.change_settings(run, patch)
    output.show(view, as_json, lambda: output.facts(run_facts(view)))


def runs_table(runs: Sequence[RunView]) -> RenderableType:
    """Return one line for each run."""
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
    return output.table(
        (*columns, ">tokens", ">of budget", ">loss"),
        rows,
        empty="There are no runs yet.",
        spare=("excluded", "loss", "revision", "tokens", "taking part", "alive", "of budget"),
    )


def run_facts(run: RunView) -> list[tuple[str, object]]:
    """Return where a run stands, and its settings, as names and values."""
    from syncline.launch.view import outer_rounds

    budget = run.settings.token_budget
    of_budget = f" of {output.count(budget)}" if budget else ""
    facts: list[tuple[str, object]] = [
        ("run", run.name),
        ("state", state_of(run)),
        ("replicas", f"{run.replicas_alive} alive, {run.replicas_taking_part} taking part"),
        ("tokens", output.count(run.committed_tokens) + of_budget),
        ("revision", run.revision),
        ("rounds", outer_rounds(run.revision, run.settings.warmup_steps)),
        ("exclusions", run.exclusions),
        ("loss", output.decimals(run.loss)),
        ("settings version", run.settings_version),
    ]
    return facts + list(_flat(run.settings.model_dump(mode="json")))


def state_of(run: RunView) -> str:
    """Return the run's state, and since when nobody trains it although it goes on."""
    state = run.state.value
    return (
        state if run.idle_since is None else f"{state}, idle since {output.clock(run.idle_since)}"
    )


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


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in settings.items():
        below = isinstance(value, dict)
        found += _flat(value, f"{prefix}{key}.") if below else [(prefix + key, value)]
    return found
