"""What the benchmark of the service's memory takes, and says of its figures."""

from __future__ import annotations

import json

import pytest

import memory


@pytest.mark.parametrize("option", ["--elements", "--fragments", "--rounds"])
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
    assert shown.err.count("the larger the ratios.") == shown.err.count("\n") == lines
