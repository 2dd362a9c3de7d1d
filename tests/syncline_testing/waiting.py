"""The one wait of the tests: it has a bound, and says what it waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.05


def wait_until(
    holds: Callable[[], bool],
    seconds: float,
    what: str,
    there: Callable[[], object] | None = None,
) -> None:
    """Wait until ``holds``; past ``seconds`` the test fails and says what did not come.

    ``there``: what there was instead, asked for then.
    """
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            instead = f"; there was {there()}" if there else ""
            raise AssertionError(f"not within {seconds:g} s: {what}{instead}")
        time.sleep(LOOK_S)
