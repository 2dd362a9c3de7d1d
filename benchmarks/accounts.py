"""What became of every accepted push: a benchmark's own books, against those of a run.

Pure. The own book is what replicas themselves were answered. Whoever is killed between an answer
and its note has one push whose answer nobody knows: its last. That may count or not. And a push is
of one fragment, and a replica pushes all fragments one after another: so the last push of who is
killed may be in some of them alone. That is torn, and not trained as a whole: the ledger of data
gives what it read to others. Whatever else is missing is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Life = tuple[str, int]
"""A replica and its incarnation."""

Push = tuple[Life, int]
"""Of a fragment: whose it is, and its number among that life's pushes of this very fragment."""

Pushes = Mapping[Push, int]
"""Their tokens."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """In tokens."""

    lost: int
    """Of pushes that were answered ACCEPTED, and in no round; or in no book of the run; or not in
    all fragments, but for who was killed amid its last."""
    twice: int
    """In a book of the run, and of no push that was accepted, or of more tokens than that has."""
    torn: int
    """Of last pushes that a kill has left in some fragments alone."""


def accounts(
    answered: Sequence[Pushes],
    counted: Sequence[Pushes],
    committed: Sequence[int],
    trained: int,
    killed: Collection[Life],
) -> Accounts:
    """Hold the books against one another, once all have left.

    Args:
        answered: by fragment, the pushes that replicas had an answer to, as they note; of those
            that were not accepted, 0 tokens.
        counted: by fragment, the pushes that its rounds name, each once.
        committed: by fragment, what the service says.
        trained: what the ledger of data says, which counts what is in every fragment.
        killed: lives that did not end by themselves.
    """
    last = [_last(both, killed) for both in zip(answered, counted, strict=True)]
    missing, foreign = [0], [0]
    for mine, theirs, unheard in zip(answered, counted, last, strict=True):
        sure = {push: n for push, n in theirs.items() if push in mine or push not in unheard}
        missing.append(_beyond(mine, theirs))
        foreign.append(_beyond(sure, mine))
    lives = {life for one in counted for life, _ in one}
    sums = {life: [_of(life, one) for one in counted] for life in lives}
    apart = {life: max(sums[life]) - min(sums[life]) for life in lives}
    torn = {
        life: min(apart[life], _may_tear(life, answered, counted)) for life in lives & set(killed)
    }
    more = [sum(one.values()) - told for one, told in zip(counted, committed, strict=True)]
    more.append(sum(map(min, sums.values())) - trained)
    return Accounts(
        lost=max(missing) + max(0, *more) + sum(apart.values()) - sum(torn.values()),
        twice=max(foreign) + max(0, *(-one for one in more)),
        torn=sum(torn.values()),
    )


def _last(books: Sequence[Pushes], killed: Collection[Life]) -> set[Push]:
    """The newest push of each life that was killed: nobody may have heard what it was answered."""
    newest: dict[Life, int] = {}
    for life, seq in (push for book in books for push in book):
        if life in killed:
            newest[life] = max(seq, newest.get(life, 0))
    return set(newest.items())


def _beyond(these: Pushes, those: Pushes) -> int:
    """What these have more than those, push by push."""
    return sum(max(0, tokens - those.get(push, 0)) for push, tokens in these.items())


def _of(life: Life, book: Pushes) -> int:
    return sum(tokens for (whose, _), tokens in book.items() if whose == life)


def _may_tear(life: Life, answered: Sequence[Pushes], counted: Sequence[Pushes]) -> int:
    """What a kill may leave of it in some fragments alone: its last push.

    Or its last two, where a fragment has not accepted the one before: that goes into the next.
    """
    refused = any(tokens == 0 for book in answered for tokens in _newest(life, book, 1))
    return max(sum(_newest(life, book, 2 if refused else 1)) for book in counted)


def _newest(life: Life, book: Pushes, count: int) -> list[int]:
    """The tokens of its newest pushes in a fragment."""
    seqs = sorted(seq for whose, seq in book if whose == life)
    return [book[life, seq] for seq in seqs[-count:]]
