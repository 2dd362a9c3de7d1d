"""With which revisions a run ends: for every replica with the same ones.

The tokens of the last fragment are the run's. Where all fragments are pushed together, the run ends
with the first revision of it that holds the token budget, and with those of the same number of the
others; nobody is further, since nothing is pushed ahead of what is under way (``turns``). Where
groups are pushed one after another, somebody may have pushed one of them beyond that number before
the last fragment told him: so all push everything once more, and the run ends with the number
after. Nobody is further then: who pushes a group beyond that has pushed the last one after he
merged the revision that holds the budget, so he knows.

Pure.
"""

from __future__ import annotations


def goal(
    revision: int,
    committed: int,
    of_round: int,
    budget: int | None,
    groups: int,
    rounds_wait: bool = True,
) -> int | None:
    """The revision that every fragment ends with; None while nobody knows.

    Args:
        revision: of the last fragment's anchor.
        committed: tokens of the run up to and including that.
        of_round: those of the round that made it.
        budget: the run's, in tokens; None: it has none.
        groups: in how many the fragments are pushed.
        rounds_wait: for everyone's push. If not, replicas have no revisions in common: each ends
            with those that it has, and the run with the newest of each fragment.
    """
    if budget is None or committed < budget:
        return None
    if not rounds_wait:
        return 0
    is_first = committed - of_round < budget
    return revision + (1 if is_first and groups > 1 else 0)
