"""What a start finds of a run in the store: its layout, our fragments, and their epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from syncline_proto.errors import StoreDamaged
from syncline_proto.layout import Layout
from syncline_proto.owners import Seat
from syncline_sync.files import MEND
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.store import RunStore
from syncline_sync.stored import Stored

ALONE = Seat()


@dataclass(frozen=True, slots=True)
class Recalled:
    """What the store has of a run; nothing if no replica has ever opened it."""

    layout: Layout | None
    fragments: dict[int, Stored]
    """Those that are ours, by number."""
    epoch: int = 1
    went_back: bool = False
    """Whether something that was published may be lost, so that the epoch is a new one."""
    heard: int = 0
    """The revision that the control plane had heard of, of every fragment."""
    lacks: int | None = None
    """The newest that is here of a fragment that lacks it; None if none does."""

    @classmethod
    def read(
        cls,
        store: RunStore,
        seat: Seat = ALONE,
        heard: int = 0,
        go_on: Callable[[], None] = lambda: None,
    ) -> Recalled:
        """Heavy where there is something: call it in the threads of the disk.

        Where a service was killed that published before it wrote, nobody knows what replicas have
        seen: all that they hold is of an epoch that has ended. So it is where the control plane has
        ``heard`` of more than is here, which is an older copy then. That is on the disk before
        anybody is told. ``go_on`` is asked before each fragment, and stops that by what it raises.

        Raises:
            StoreDamaged: a file is missing, short, or fails its checksum; the message names it.
            StoreError: the disk refuses.
        """
        store.settle()
        layout, epoch = store.load_layout(), store.load_epoch()
        if layout is None:
            return cls(None, {}, epoch)
        fragments = store.fragments(layout, seat.owned(layout))
        behind = {fragment for fragment in fragments if fragment.is_behind}
        newest = {fragment: fragment.newest for fragment in fragments}
        # Of what is behind a kill takes one.
        older = [
            at for one, at in newest.items() if at is not None and at + (one in behind) < heard
        ]
        went_back = bool(behind or older)
        found = read_fragments(fragments, epoch + went_back, go_on)
        check_epoch(store, epoch, {number: one.committed_in for number, one in found.items()})
        epoch += went_back
        recalled = cls(layout, found, epoch, went_back, heard, min(older, default=None))
        if went_back:
            store.save_epoch(epoch)
            for fragment in behind:
                fragment.catch_up()
        return recalled


def check_epoch(store: RunStore, epoch: int, committed_in: Mapping[int, int]) -> None:
    """See that the epoch on the disk is no older than what was committed in it, by fragment.

    Without this a lost file would let an epoch begin a second time, and what replicas hold of its
    first time, which the run has gone back from, would be taken for what is there.

    Raises:
        StoreDamaged: it is lost, or an older copy.
    """
    for number, its in committed_in.items():
        if its > epoch:
            raise StoreDamaged(
                f"{store.epoch_file} is missing or an older one: it says epoch {epoch}, and "
                f"fragment {number} was committed in epoch {its}. {MEND}"
            )


def read_fragments(
    fragments: Sequence[FragmentStore], epoch: int, go_on: Callable[[], None] = lambda: None
) -> dict[int, Stored]:
    """Fragments as their files have them, by number. As ``Recalled.read``."""
    found: dict[int, Stored] = {}
    for one in fragments:
        go_on()
        found[one.place.fragment] = Stored.read(one, epoch)
    return found
