"""What a run has trained, in one number, though its fragments need not agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def run_tokens(committed: Mapping[int, int]) -> int:
    """The committed tokens of a run, from those of each fragment, by its number (one at least).

    Those of the last fragment (the highest number) are the run's: others may differ by a push
    that was excluded or late, and a sum or an extreme over them would tell of no single revision.
    """
    return committed[max(committed)]
