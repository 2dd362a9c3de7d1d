"""A change of a run's settings that is not written as one is told how to write it."""

from __future__ import annotations

import pytest

from syncline.cli.app import run


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        (["runs", "set", "my-run", "foo"], "error: foo: "),
        (["runs", "create", "--name", "my-run", "--set", "foo"], "error: --set foo: "),
        (["checkpoints", "restore", "/kept/a", "--run", "b", "--set", "foo"], "error: --set foo: "),
    ],
)
def test_how_a_setting_of_a_run_is_written(
    capsys: pytest.CaptureFixture[str], command: list[str], typed: str
) -> None:
    assert run(command) == 10
    said = " ".join(capsys.readouterr().err.split())
    assert said == f"{typed}write it as KEY=VALUE, such as sync_every=8."
