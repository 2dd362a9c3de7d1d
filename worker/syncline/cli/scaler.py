"""``syncline scaler``: let Compose or Kubernetes have as many replicas as runs should have."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from syncline.cli import output
from syncline.cli.options import DEFAULT_CONTROL, Control, Json, MaybeRunName, Token, connect

if TYPE_CHECKING:
    from syncline.scaling.watch import Done, Workload

RUN = "{run}"
"""Stands for the run's name in a workload's."""

KUBERNETES = re.compile(r"(?P<namespace>[^/]+)/((?P<kind>statefulset|deployment)/)?(?P<name>[^/]+)")


def scaler(
    run: MaybeRunName = None,
    kubernetes: Annotated[
        str | None,
        typer.Option(
            "--kubernetes",
            metavar="NAMESPACE/[KIND/]NAME",
            help="A statefulset (without KIND) or a deployment.",
            show_default=False,
        ),
    ] = None,
    compose: Annotated[
        str | None,
        typer.Option("--compose", metavar="FILE", help="A Compose file.", show_default=False),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="NAME", help="The Compose project, if not the file's."),
    ] = None,
    service: Annotated[
        str, typer.Option("--service", metavar="NAME", help="The Compose service of replicas.")
    ] = "worker",
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", min=0.2, max=3600, help="Seconds between two looks."
        ),
    ] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, act, and end.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Stay when the run has ended, until Ctrl+C.")
    ] = False,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Start and end replicas where Compose or Kubernetes has them.

    It does what `syncline runs scale` asks for, and nothing else; replicas that are not of the
    workload count as well, and stay. Who is too many gets SIGTERM, pushes what it did and leaves.
    With the run's end the scaler ends, too. Without RUN it sees to all runs that were scaled, for
    ever, and each has the workload that its name is in, as {run}.

    \b
    Examples:
      syncline scaler my-run --kubernetes syncline/worker
      syncline scaler --kubernetes 'syncline/deployment/{run}-worker'
      syncline scaler demo --compose docker-compose.yml --once
    """
    from syncline.scaling.watch import Scaler

    def tell(done: Done) -> None:
        if as_json:
            output.show_line({**_fields(done), "said": done.sentence})
        else:
            output.console().print(done.sentence, markup=False, soft_wrap=True)

    workload_of = _workloads(run, kubernetes, compose, project, service)
    with connect(control, token) as client:
        watch = Scaler(client, run, workload_of, tell, output.note)
        if once:
            watch.once()
        else:
            watch.follow(every, time.sleep, keep=keep)


def _fields(done: Done) -> dict[str, object]:
    return {"run": done.change.run, "before": done.change.before, "after": done.change.after}


def _workloads(
    run: str | None,
    kubernetes: str | None,
    compose: str | None,
    project: str | None,
    service: str,
) -> Callable[[str], Workload]:
    """Return whose replicas are a run's.

    Raises:
        ConfigError: it is not said, or said twice, or what is said names nothing.
    """
    from syncline_proto.errors import ConfigError

    if (kubernetes is None) is (compose is None):
        raise ConfigError(
            "Say where replicas are to be started: --kubernetes or --compose, and not both."
        )
    named = " ".join(filter(None, (kubernetes, compose, project)))
    if run is None and RUN not in named:
        raise ConfigError(
            f"Several runs cannot have one workload: name the run, or write {RUN} into the "
            "workload's name."
        )
    if kubernetes is not None:
        return _in_kubernetes(kubernetes)
    assert compose is not None
    return _in_compose(compose, project, service)


def _in_kubernetes(named: str) -> Callable[[str], Workload]:
    from syncline.scaling.kubernetes import Kubernetes, api
    from syncline_proto.errors import ConfigError

    found = KUBERNETES.fullmatch(named)
    if found is None:
        raise ConfigError(
            f"--kubernetes: {named!r} is not NAMESPACE/NAME, NAMESPACE/statefulset/NAME or "
            "NAMESPACE/deployment/NAME."
        )
    apps = api()
    kind = "deployment" if found["kind"] == "deployment" else "statefulset"

    def workload(run: str) -> Workload:
        namespace, name = (found[part].replace(RUN, run) for part in ("namespace", "name"))
        return Kubernetes(apps, namespace, kind, name)

    return workload


def _in_compose(file: str, project: str | None, service: str) -> Callable[[str], Workload]:
    from syncline.scaling.compose import Compose

    def workload(run: str) -> Workload:
        of_run = project.replace(RUN, run) if project else None
        return Compose(file.replace(RUN, run), of_run, service)

    if RUN not in file:
        workload(RUN)  # a wrong file is told at once; what looks find is tried again
    return workload
