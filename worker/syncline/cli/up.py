"""``syncline demo`` and ``syncline up``: a whole run on this machine, from one command."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from syncline.cli import output
from syncline.cli.options import JobFile, Json, Overrides
from syncline_proto.errors import ConfigError

if TYPE_CHECKING:
    from syncline.launch.local import LocalRun
    from syncline.launch.plan import Launch
    from syncline.launch.view import Result

DEMO_PROMPT = "def "
STOPS = (signal.SIGINT, signal.SIGTERM)
"""A service manager's stop is Ctrl+C by another name."""

Keep = Annotated[
    bool, typer.Option("--keep", help="Leave the page and the services running until Ctrl+C.")
]
SecondsLimit = Annotated[
    float | None,
    typer.Option(
        "--seconds-limit",
        metavar="SECONDS",
        min=1,
        help="End the run for good after this long, loading included.",
    ),
]


def demo(
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="A new folder goes in here. [./syncline-demo]"),
    ] = None,
    keep: Keep = False,
    seconds_limit: SecondsLimit = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Train a small language model with two replicas, here and now.

    Starts the control plane, the sync service and two replicas as local processes, trains on the
    source code of Python's standard library, exports the merged model and lets it write.

    \b
    Examples:
      syncline demo
      syncline demo --keep
      syncline demo --out /tmp/demo --json
    """
    from syncline.launch.plan import plan_demo

    launch = plan_demo(out, overrides or [], seconds_limit)
    _run(launch, keep=keep, as_json=as_json, prompt=DEMO_PROMPT)


def up(
    job: JobFile,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", metavar="N", min=1, max=1024, help="How many, instead of the file's."
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="RUN's folder goes in here. [./syncline-runs]"),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts", metavar="N", min=0, max=1000, help="For each process that dies."
        ),
    ] = 3,
    keep: Keep = False,
    seconds_limit: SecondsLimit = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="Let the exported model go on from this."),
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Train a job with all its replicas on this machine.

    Ends with an export of the merged model. Everything lies in DIR/RUN; the same command again
    goes on from the last committed round.

    \b
    Examples:
      syncline up job.toml
      syncline up job.toml --replicas 4 --set run.sync_every=128
      syncline up job.toml --set up.control_port=8500 --keep
    """
    from syncline.launch.plan import plan_up

    launch = plan_up(job, out, overrides or [], replicas, restarts, seconds_limit)
    if prompt is not None and launch.job.model.factory is not None:
        raise ConfigError("--prompt: only a model of transformers can go on from a text; leave it.")
    _run(launch, keep=keep, as_json=as_json, prompt=prompt)


def _run(launch: Launch, *, keep: bool, as_json: bool, prompt: str | None) -> None:
    """Launch, watch, export, sample, tell; whatever happens, leave no process behind."""
    from syncline.cli.live import screen_for
    from syncline.launch.local import LocalRun

    code, local = 0, None
    before = {number: signal.getsignal(number) for number in STOPS}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with LocalRun(launch, screen := screen_for(as_json)) as local:
            try:
                with screen:
                    local.start()
                    trained = local.follow()
                done = _exported(local, trained, launch, prompt, as_json=as_json)
                page = local.view.page
                _tell(replace(done, page=page) if keep else done, page, as_json)
                code = 0 if done.has_ended else left_early(done, goes_on=launch.goes_on)
                if keep:
                    _keep(local)
            except KeyboardInterrupt:
                _from_here_hurry(local)
                output.note(_stopping(local))
                raise
            finally:
                _from_here_hurry(local)
    except KeyboardInterrupt:
        output.note(_stopped(local, launch))
        raise
    finally:
        for number, heed in before.items():
            signal.signal(number, heed)
    if code:
        raise typer.Exit(code)


def _from_here_hurry(local: LocalRun) -> None:
    """Let Ctrl+C hurry what winds down.

    An exception amid it would leave half of it undone, and take the place of how it ended.
    """
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: local.hurry())


def _stopping(local: LocalRun) -> str:
    """What is waited for from here on."""
    if local.replicas_alive:
        return "Stopping: replicas push what they did and leave (Ctrl+C again kills)."
    return "Stopping the services (Ctrl+C again kills)." if local.has_services else "Stopping."


def _stopped(local: LocalRun | None, launch: Launch) -> str:
    """What is left, once all have stopped."""
    if local is None or not local.has_services:
        return "Stopped before anything was started."
    left = f"Stopped; what was done is in {launch.folder}."
    if local.view.has_ended:
        return left
    return f"{left} {'The same command goes on.' if launch.goes_on else 'Each start begins anew.'}"


def left_early(result: Result, *, goes_on: bool) -> int:
    """Say that nobody is left in a run that has not ended; return the exit code.

    It is 0 only where every replica was asked to leave.
    """
    from syncline_proto.errors import ProcessFailed

    budget = result.token_budget
    where = (
        f"at {100 * result.tokens // budget} % of the token budget"
        if budget
        else f"after {output.count(result.tokens)} tokens"
    )
    again = "goes on" if goes_on else "starts anew"
    sentence = f"No replica is left {where}; the same command {again}."
    if result.failed or result.kicked:
        return output.error(ProcessFailed(sentence))
    output.note(sentence)
    return 0


def _keep(local: LocalRun) -> None:
    """Leave the services running; what was asked for is done, so Ctrl+C ends it well."""
    try:
        output.note(f"The page stays at {local.view.page} until Ctrl+C.")
        local.keep()
    except KeyboardInterrupt:
        _from_here_hurry(local)
        output.note(_stopping(local))


def _exported(
    local: LocalRun, trained: Result, launch: Launch, prompt: str | None, *, as_json: bool
) -> Result:
    """Write the merged model where the job wants it; let it write if there is a prompt."""
    if not trained.revision:
        return trained
    with output.busy("Fetching and writing the merged model ...", stderr=as_json):
        told = local.export(trained, launch.export)
    if prompt is None:
        return told
    with output.busy("The model is writing ...", stderr=as_json):
        return replace(told, sample=local.sample(launch.export, prompt))


def _tell(result: Result, page: str, as_json: bool) -> None:
    if as_json:
        output.show(result.as_dict(), True, lambda: "")
        return
    from syncline.cli.live import ending

    output.console().print(ending(result, page))
    if result.sample is not None:
        output.console().print("A sample of the merged model:", style="dim")
        sys.stdout.write(result.sample + "\n")
