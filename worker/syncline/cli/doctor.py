"""``syncline doctor``: prints the checks of ``checks.py`` and says whether one failed."""

from __future__ import annotations

from typing import Annotated

import typer

from syncline.cli import output
from syncline.cli.options import DEFAULT_CONTROL, Control, Json, Token

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    context: typer.Context,
    folder: Annotated[
        str, typer.Option("--folder", metavar="DIR", help="Where runs will be written.")
    ] = ".",
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Check this machine and the services.

    Each finding comes with what to do about it.

    Ends with exit code 1 if a check fails; warnings do not count.

    \b
    Examples:
      syncline doctor
      syncline doctor --control http://10.0.0.5:8500 --json
    """
    from dataclasses import asdict

    from syncline.cli.checks import all_checks

    source = context.get_parameter_source("control")
    is_named = source is not None and source.name != "DEFAULT"
    findings = []
    for finding in all_checks(folder, control, token, is_named=is_named):
        findings.append(finding)
        if not as_json:
            _tell(finding.verdict, finding.check, finding.what, finding.advice)
    failed = any(finding.verdict == "fail" for finding in findings)
    if as_json:
        found = {"ok": not failed, "checks": [asdict(finding) for finding in findings]}
        output.show(found, True, lambda: "")
    if failed:
        raise typer.Exit(1)


def _tell(verdict: str, check: str, what: str, advice: str) -> None:
    screen = output.console()
    screen.print(f"{verdict:5}", style=STYLES[verdict], end="")
    screen.print(f"{check:16}", style="dim", end="")
    screen.print(what, markup=False, soft_wrap=True)
    if advice:
        screen.print(" " * 21 + advice, markup=False, soft_wrap=True)
