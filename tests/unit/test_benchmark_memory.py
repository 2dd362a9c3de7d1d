"""What the benchmark of the service's memory takes, and says of its figures."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

import memory


@pytest.mark.parametrize("option", ["--elements", "--fragments", "--rounds", "--repeats"])
@pytest.mark.parametrize("given", ["0", "-3", "many"])
def test_a_size_that_is_none_is_refused_in_a_sentence(
    option: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        memory.options().parse_args([f"{option}={given}"])
    assert ended.value.code == 2
    assert f"{given} is no whole number from 1 on." in capsys.readouterr().err


@pytest.mark.parametrize(("elements", "lines"), [(memory.ELEMENTS - 1, 1), (memory.ELEMENTS, 0)])
def test_that_small_fragments_give_larger_ratios_is_said(
    elements: int,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(memory, "peaks", lambda *_: (0, 8 * elements))
    monkeypatch.setattr("sys.argv", ["memory.py", f"--elements={elements}"])
    memory.main()
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ratio_2"] == 0.25
    assert shown.err.count("the larger the ratios.") == lines


def test_counts_take_turns_and_a_ratio_is_the_median_of_all_of_its_repeats(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parameter_bytes = 2 * 1000 * 4
    more = {2: iter([3.0, 9.0, 2.0]), 8: iter([3.0, 4.5, 4.0])}
    turns: list[int] = []

    def peaks(count: int, *_: object) -> tuple[int, int]:
        turns.append(count)
        empty = 100 * len(turns)
        return empty, empty + round(next(more[count]) * parameter_bytes)

    monkeypatch.setattr(memory, "peaks", peaks)
    sizes = ["--fragments=2", "--elements=1000", "--repeats=3"]
    monkeypatch.setattr("sys.argv", ["memory.py", *sizes])
    memory.main()
    told = json.loads(capsys.readouterr().out)
    assert turns == [2, 8, 2, 8, 2, 8]
    assert (told["ratio_2"], told["ratio_8"]) == (3.0, 4.0)
    assert told["growth"] == 4.0 / 3.0
    assert told["empty_bytes"] == 600


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, None),
        ({"ratio_2": 3.501}, "ratio_2 is 3.501, over 3.5."),
        ({"ratio_8": 3.501}, "ratio_8 is 3.501, over 3.5."),
        ({"growth": 1.051}, "growth is 1.051, over 1.05."),
        ({"ratio_2": 0.1, "ratio_8": 0.1, "growth": 0.9}, None),
        ({"ratio_8": float("nan")}, "ratio_8 is nan"),
    ],
)
def test_too_much_memory_or_growth_is_a_shortfall(
    differs: dict[str, float], said: str | None
) -> None:
    told = memory.shortfall({"ratio_2": 3.5, "ratio_8": 3.5, "growth": 1.05} | differs)
    assert told is None if said is None else told is not None and said in told


@pytest.mark.parametrize(
    ("option", "is_asked"),
    [
        ("--repeats=1", True),
        ("--rounds=1", False),
        ("--elements=9", False),
        ("--fragments=9", False),
        ("--staging-bytes=2147483648", False),
    ],
)
def test_a_shortfall_ends_it_with_a_sentence_where_model_and_room_are_the_usual_ones(
    option: str,
    is_asked: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(memory, "peaks", lambda *_: (0, 1 << 40))
    monkeypatch.setattr("sys.argv", ["memory.py", option])
    missed = pytest.raises(SystemExit, match="over 3.5") if is_asked else nullcontext()
    with missed:
        memory.main()
    sizes = "--fragments 8 --elements 8388608 --rounds 4"
    usual = f"they count with {sizes}, and without --staging-bytes."
    is_said = f"Nothing is asked of these ratios: {usual}\n" in capsys.readouterr().err
    assert is_said is not is_asked
