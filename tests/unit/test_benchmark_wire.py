"""What the benchmark of the wire makes of its speeds, and when it calls them too slow."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext

import pytest

import wire
from wire import shortfall, summary


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, None),
        ({"push_ratio": 0.69}, "push_ratio is 0.69, under 0.7."),
        ({"pull_ratio": 0.69}, "pull_ratio is 0.69, under 0.7."),
        ({"push_ratio": 1.3, "pull_ratio": 2.0}, None),
        ({"pull_ratio": float("nan")}, "pull_ratio is nan"),
    ],
)
def test_too_slow_a_push_or_pull_is_a_shortfall(
    differs: dict[str, float], said: str | None
) -> None:
    told = shortfall({"push_ratio": 0.7, "pull_ratio": 0.7} | differs)
    assert told is None if said is None else told is not None and said in told


def test_a_ratio_is_the_median_of_neighbours_and_a_speed_of_all() -> None:
    told = summary(
        {
            "push": [1.0, 4.0, 6.0],
            "bare_push": [2.0, 4.0, 12.0],
            "pull": [9.0, 1.0, 3.0],
            "bare_pull": [3.0, 1.0, 1.5],
            "merged": [3.0, 1.0, 2.0],
        }
    )
    assert told["push_ratio"] == 0.5, "1.0 is what the medians would give"
    assert told["pull_ratio"] == 2.0
    assert (told["push"], told["bare_push"]) == (4.0, 4.0)
    assert (told["pull"], told["bare_pull"], told["merged"]) == (3.0, 1.5, 2.0)


@pytest.mark.parametrize(
    ("option", "is_asked"),
    [
        ("--repeats=1", True),
        ("--lives=1", True),
        ("--fragments=9", False),
        ("--elements=9", False),
        ("--streams=9", False),
    ],
)
def test_whether_its_ratios_count_is_said(
    option: str,
    is_asked: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = {name: [1.0] for name in ("push", "pull")}
    slow |= {f"bare_{name}": [2.0] for name in slow} | {"merged": [1.0]}
    monkeypatch.setattr(wire, "services", lambda: nullcontext((None, None, None)))
    monkeypatch.setattr(wire, "measured", lambda *_: slow)
    monkeypatch.setattr("sys.argv", ["wire.py", option])
    missed = pytest.raises(SystemExit, match="under 0.7") if is_asked else nullcontext()
    with missed:
        wire.main()
    said = re.sub(r"Life \d of \d:\n", "", capsys.readouterr().err)
    usual = "they count with --fragments 8 --elements 8388608 --streams 4."
    assert said == ("" if is_asked else f"Nothing is asked of these ratios: {usual}\n")


def test_speeds_of_all_lives_count_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neighbours of each; and each life has servers of its own."""
    lives: list[int] = []

    def life() -> nullcontext[tuple[None, None, None]]:
        lives.append(len(lives))
        return nullcontext((None, None, None))

    def speeds(*_: object) -> dict[str, list[float]]:
        ours = float(1 + len(lives))  # 2, 3, 4
        bare = {"bare_push": [2.0], "bare_pull": [1.0]}
        return {"push": [ours], "pull": [ours], "merged": [ours], **bare}

    monkeypatch.setattr(wire, "services", life)
    monkeypatch.setattr(wire, "measured", speeds)
    monkeypatch.setattr("sys.argv", ["wire.py", "--lives", "3"])
    wire.main()
    told = json.loads(capsys.readouterr().out)
    assert (told["push_ratio"], told["pull_ratio"], told["fp32"]["push"]) == (1.5, 3.0, 3.0)
    assert len(lives) == 3
