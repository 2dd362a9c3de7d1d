"""What goes on, as it is watched: ``status --watch`` on a terminal of its own, and ``rounds``."""

from __future__ import annotations

import re
import sys

import httpx
import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.shell import Shell
from syncline_testing.terminal import CTRL_C, HIDE, SHOW, on_terminal

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")


@on_linux
@pytest.mark.long
def test_it_draws_what_is_new_and_ends_with_ctrl_c(control_alone: Cluster) -> None:
    control_alone.post("/runs", {"name": "first-run"})
    flags = ("status", "--watch", "--every", "0.2", "--control", control_alone.control_url)
    with on_terminal(*flags) as terminal:
        terminal.sees("first-run", times=3)
        assert "second-run" not in terminal.screen
        control_alone.post("/runs", {"name": "second-run"})
        terminal.sees("second-run", times=2)
        control_alone.control.kill()
        terminal.sees("does not answer")
        control_alone.control.start()
        seen = terminal.screen.count("second-run")
        terminal.sees("second-run", times=seen + 1)
        terminal.presses(CTRL_C)
        assert terminal.exit_code() == 130
    assert "Traceback" not in terminal.screen
    assert terminal.screen.rindex(SHOW) > terminal.screen.rindex(HIDE), "the cursor is back"
    # In one place: each picture goes back up over the one before.
    assert len(re.findall(r"\x1b\[1A", terminal.screen)) > 3


@on_linux
@pytest.mark.long
def test_its_lines_go_on_after_the_control_plane_was_away(control_alone: Cluster) -> None:
    flags = ("status", "--watch", "--json", "--every", "0.2")
    with on_terminal(*flags, "--control", control_alone.control_url) as terminal:
        terminal.sees('"damaged"', times=2)
        control_alone.control.kill()
        terminal.sees("does not answer")
        control_alone.control.start()
        terminal.sees('"damaged"', times=terminal.screen.count('"damaged"') + 1)
        terminal.presses(CTRL_C)
        assert terminal.exit_code() == 130
    assert "Traceback" not in terminal.screen


def test_rounds_that_several_services_tell_stand_in_the_order_of_their_commits(
    control_alone: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    control_alone.post("/runs", {"name": "shared"})
    common = {"kind": "pseudo-gradient", "seconds": 0.1, "contributions": []}
    for fragment in range(2):  # each tells of two at once
        rounds = [
            {**common, "fragment": fragment, "fragment_name": f"f{fragment}",
             "revision": revision, "committed_at": 1e9 + 10 * revision + fragment}
            for revision in (1, 2)
        ]  # fmt: skip
        reports = f"{control_alone.control_url}/v1/runs/shared/reports"
        httpx.post(reports, json={"rounds": rounds}, trust_env=False).raise_for_status()
    told = Shell(capsys).json(f"rounds shared --control {control_alone.control_url}")
    order = [(one["revision"], one["fragment"]) for one in told]
    assert order == [(1, 0), (1, 1), (2, 0), (2, 1)]
