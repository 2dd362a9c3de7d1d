"""The short form of ``make fuzz`` for checkpoints: whatever they are, the run at work stays it.

And what is refused says so; nothing that somebody has written there ends the service.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import given

from fuzz.examples import always_the_same
from fuzz.keeping import Call, calls, keeping, strange_files

EXAMPLES = 30


def test_whatever_is_asked_about_checkpoints_the_service_goes_on_as_it_was(tmp_path: Path) -> None:
    with keeping(tmp_path) as (runner, kept):

        @always_the_same(EXAMPLES)
        @given(calls())
        def meets(call: Call) -> None:
            runner.run(kept.meets(call))

        meets()
        answered = kept.answered
        for call in strange_files():
            runner.run(kept.meets(call))
        assert kept.answered == answered, "none of them is a fragment"
        # The examples are worth something: many were refused, and some answered.
        assert kept.refused > EXAMPLES / 3 and kept.answered > EXAMPLES / 10 and kept.begun
