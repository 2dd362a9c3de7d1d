"""How benchmarks end that are interrupted: in a sentence, under the exit code of Ctrl+C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import beside
import demo
import memory
import overhead
import paced
import round as whole_round
import stages
import wire


def interrupted(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


def paced_one() -> None:
    paced.tell(interrupted, lambda _: None)


@pytest.mark.parametrize(
    ("main", "module", "name"),
    [
        (beside.main, beside, "Cluster"),
        (memory.main, memory, "peaks"),
        (overhead.main, overhead, "Cluster"),
        (paced_one, None, ""),
        (whole_round.main, whole_round, "measured"),
        (stages.main, stages, "Stages"),
        (wire.main, wire, "services"),
    ],
)
def test_one_that_is_interrupted_ends_in_a_sentence(
    main: Callable[[], None],
    module: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark.py"])
    if module is not None:
        monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Interrupted; nothing of it is left.\n"


class Demo:
    """A command that hears Ctrl+C as its caller does, and then ends."""

    returncode = 130

    def __init__(self, *_: Any, **__: Any) -> None:
        self.asked = 0

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def communicate(self) -> tuple[str, None]:
        self.asked += 1
        if self.asked == 1:
            raise KeyboardInterrupt
        return "", None


def test_the_demo_ends_as_the_command_does_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.subprocess, "Popen", Demo)
    with pytest.raises(SystemExit) as ended:
        demo.measured(["demo"])
    assert ended.value.code == 130
