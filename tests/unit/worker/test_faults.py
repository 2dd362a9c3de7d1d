"""An error's sentence where it is read: a script is told of arguments, a shell of flags."""

from __future__ import annotations

import pytest

from syncline.cli import output
from syncline.faults import IN_SCRIPTS, IN_SHELLS, plainly, told, why_of
from syncline_proto.errors import ConfigError, RunConflict, SynclineError, Unreachable

AWAY = Unreachable("Nobody answers; name another.", "control")


@pytest.mark.parametrize(
    ("error", "script", "shell"),
    [
        (AWAY, "(control=, SYNCLINE_CONTROL).", "(--control, SYNCLINE_CONTROL)."),
        (ConfigError("Odd.", "token"), "Odd (SYNCLINE_TOKEN).", "Odd (--token, SYNCLINE_TOKEN)."),
        (RunConflict("It has ended."), "It has ended.", "It has ended."),
    ],
)
def test_a_setting_is_named_as_it_is_set_there(
    error: SynclineError,
    script: str,
    shell: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "console", output.console.__wrapped__)  # not one made before

    @plainly
    @plainly
    def act() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        act()
    assert str(raised.value) == told(error, IN_SCRIPTS)
    assert str(raised.value).endswith(script)
    assert error.args == (error.message,)
    assert output.error(error) == error.exit_code
    assert capsys.readouterr().err.rstrip().endswith(shell)
    assert told(error, IN_SHELLS).endswith(shell)


def test_the_text_of_an_error_that_is_not_ours_stays_out_of_the_runs_log() -> None:
    assert why_of(AWAY) == AWAY.message
    assert "secret" not in why_of(ValueError("secret")) and "ValueError" in why_of(ValueError())
    assert why_of(KeyboardInterrupt()) == "It was interrupted."
