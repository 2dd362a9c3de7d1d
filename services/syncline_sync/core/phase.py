"""The synchronous phase, as one fragment is in it: its offer, and what is left when all are gone.

Pure. A phase is lost once everyone in it is gone, as some fragment sees it; and the offers of all
fragments count together (``ending``). Which pushes a phase takes is said in ``refusals``; when a
step of it closes, the fragment decides, as with any round.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from syncline_sync.core.ending import Ending
from syncline_sync.core.record import Kind, Saved
from syncline_sync.core.round import Round


def is_synchronous(saved: Saved, warmup_steps: int) -> bool:
    """Whether a run with so many steps of it is in the phase: gradients are averaged at each."""
    return warmup_steps > 0 and saved.revision == 0


class Phase:
    """One fragment's part in the end of it, and in its loss."""

    def __init__(self, number: int, ending: Ending, offer: Saved | None) -> None:
        """Of fragment ``number``; all of them share ``ending``.

        ``offer`` is what was stored beside this fragment's, before a restart.
        """
        self._number, self._ending, self._offer = number, ending, offer

    @property
    def has_ended(self) -> bool:
        """Whether every fragment has its offer: they become revision 1."""
        return self._ending.decided

    def passed(self) -> None:
        """The fragment stands at revision 1 or later: no offer of it is missing."""
        self._ending.offered(self._number, self._ending.phase)

    def offered(self, saved: Saved) -> None:
        """The fragment's offer is stored; from now on it counts."""
        self._ending.offered(self._number, saved.phase)

    def kept_offer(self, saved: Saved) -> Saved | None:
        """What was stored beside an offer, to be taken up once; None if that is of another phase.

        ``saved`` is where the fragment stands.
        """
        offer, self._offer = self._offer, None
        of_now = offer is not None and (offer.phase, offer.gradient_step) == (
            saved.phase, saved.gradient_step,
        )  # fmt: skip
        return offer if of_now else None

    def begun_anew(self, saved: Saved, inside: Collection[str]) -> Saved | None:
        """What a fragment in the phase has once that has begun anew; None while it goes on.

        ``inside``: the replicas that are alive and take part, or have pushed in the open round.
        """
        if saved.gradient_step and not inside:
            self._ending.lost(saved.phase)
        if saved.phase == self._ending.phase:
            return None
        return without_steps(saved, self._ending.phase)


def offer_of(saved: Saved, r: Round | None) -> Saved | None:
    """What to store beside the offer in the open round; None if that has none, or its first."""
    if r is None or r.kind is not Kind.PARAMETERS or r.result == 0:
        return None
    return replace(saved, contributions=r.contributions())


def without_steps(before: Saved, phase: int) -> Saved:
    """What a fragment has once its phase is lost, in the next: its parameters of revision 0.

    The tokens and data of the steps that are gone with it are nobody's any more.
    """
    return replace(
        before,
        gradient_step=0,
        committed_tokens=0,
        contributions=(),
        trained=(),
        excluded=(),
        phase=phase,
    )
