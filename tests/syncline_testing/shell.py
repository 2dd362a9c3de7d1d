"""The command line in this process, as tests of many commands use it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from syncline.cli.app import run


class Shell:
    """Runs commands as a person would, with the address and token in the environment."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: str) -> tuple[int, str, str]:
        code = run(line.split())
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def json(self, line: str) -> Any:
        code, out, err = self(f"{line} --json")
        assert (code, err) == (0, "")
        return json.loads(out)

    def refused(self, line: str) -> tuple[int, str]:
        """The exit code and the sentence of a command that must fail."""
        code, out, err = self(line)
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1
        return code, err
