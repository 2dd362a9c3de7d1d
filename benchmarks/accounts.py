"""What became of every accepted push: a benchmark's own books, against those of a run.

Pure. A push is of one fragment, and a replica pushes all fragments one after another: who is killed
meanwhile has its last push in some of them alone. That is torn, and not trained as a whole: the
ledger of data gives what it read to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

Life = tuple[str, int]
"""A replica and its incarnation."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """In tokens."""

    lost: int
    """Of accepted pushes, and in no book of the run; or not in all fragments, without a kill."""
    twice: int
    """In a book of the run more often than in accepted pushes."""
    torn: int
    """Of pushes that a kill has left in some fragments alone."""


def accounts(
    own: Sequence[Counter[Life]],
    committed: Sequence[int],
    trained: int,
    killed: Collection[Life],
) -> Accounts:
    """Hold the books against one another, once all have left.

    Args:
        own: by fragment, the tokens of every life's accepted pushes, each once.
        committed: by fragment, what the service says.
        trained: what the ledger of data says, which counts what is in every fragment.
        killed: lives that did not end by themselves.
    """
    lives = {life for of_fragment in own for life in of_fragment}
    least = {life: min(one[life] for one in own) for life in lives}
    apart = {life: max(one[life] for one in own) - least[life] for life in lives}
    torn = sum(tokens for life, tokens in apart.items() if life in killed)
    more = [one.total() - told for one, told in zip(own, committed, strict=True)]
    more.append(sum(least.values()) - trained)
    return Accounts(
        lost=max(0, *more) + sum(apart.values()) - torn,
        twice=max(0, *(-one for one in more)),
        torn=torn,
    )
