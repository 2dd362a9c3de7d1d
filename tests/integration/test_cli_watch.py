"""``syncline status --watch`` on a terminal of its own: again and again, until Ctrl+C."""

from __future__ import annotations

import re
import sys

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.terminal import CTRL_C, HIDE, SHOW, on_terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")


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
