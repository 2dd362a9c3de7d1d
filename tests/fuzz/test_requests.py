"""The short form of ``make fuzz`` for pulls and openings: what is not wholly valid is refused.

And whatever it is, no value, no round and no run's layout is another for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import SearchStrategy

from fuzz.asking import asking
from fuzz.examples import always_the_same
from fuzz.requests import Request, openings, pulls

EXAMPLES = 80


@pytest.mark.parametrize("what", [pulls(), openings()], ids=["pulls", "openings"])
def test_what_is_asked_is_answered_if_it_is_wholly_valid_and_else_refused(
    tmp_path: Path, what: SearchStrategy[Request]
) -> None:
    with asking(tmp_path) as (runner, asked):

        @always_the_same(EXAMPLES)
        @given(what)
        def meets(request: Request) -> None:
            runner.run(asked.meets(request))

        meets()
        # The examples are worth something: many were refused, and some answered.
        assert asked.refused > EXAMPLES / 4 and asked.answered > EXAMPLES / 10
        assert asked.opened or asked.followed
