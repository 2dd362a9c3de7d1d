"""The short form of ``make fuzz``: what counts is what the rules say, whatever else is sent.

And whatever it is, it takes no more memory than is allowed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given

from fuzz.arena import arena
from fuzz.examples import always_the_same
from fuzz.flood import GROWTH, drawn, flooded
from fuzz.rules import counted
from fuzz.streams import Stream, broken_rules, pushes

EXAMPLES = 100
SEED = 7


def test_a_push_counts_if_it_is_wholly_valid_and_else_changes_nothing(tmp_path: Path) -> None:
    with arena(tmp_path) as (runner, fought):

        @always_the_same(EXAMPLES)
        @given(pushes())
        def meets(streams: tuple[Stream, ...]) -> None:
            runner.run(fought.meets(streams))

        meets()
        # The examples are worth something: many were refused, and some counted.
        assert fought.refused > EXAMPLES / 3 and fought.entered > EXAMPLES / 20
        assert fought.looks > EXAMPLES


def test_a_push_that_breaks_one_rule_changes_nothing(tmp_path: Path) -> None:
    """Each rule by itself: a service that has forgotten one is found out, whatever is drawn."""
    with arena(tmp_path) as (runner, fought):
        for streams in broken_rules():
            assert counted(streams) == [], streams
            runner.run(fought.meets(streams))
        assert fought.entered == 0


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_many_malformed_calls_at_a_time_take_no_more_memory_than_is_allowed_and_leave_none(
    tmp_path: Path,
) -> None:
    """A pass of them, and the same once more: nothing is kept of any."""
    figures = flooded(tmp_path, drawn(SEED), SEED)
    assert figures.refused / 2 * (100 << 10) > GROWTH, "so much of each would show"
