"""With which revisions a damaged run goes on: one cut, where its fragments still keep one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def goals(newest: Mapping[int, int], whole: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The revision with which each fragment goes on, by number.

    Each goes on with its newest whole one. Where that takes some of them back, all others that keep
    the oldest of these go back to it, too.

    Args:
        newest: each fragment's newest revision, whole or not.
        whole: the revisions of each that are whole, one at least, newest first.
    """
    own = {number: revisions[0] for number, revisions in whole.items()}
    common = min((at for number, at in own.items() if at < newest[number]), default=-1)
    return {number: common if common in whole[number] else at for number, at in own.items()}
