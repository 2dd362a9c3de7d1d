"""Going back on the operator's word: damaged revisions give way to the ones before them.

A run whose files are damaged is served to nobody, and nothing here happens by itself: to go back is
to lose rounds. The word names the newest revision that may be given up, so one that is left where
it was said consents to nothing after it. Who has been told to, chooses one cut: the fragments that
have to go back, and all others that still keep the same revision. Of a head that is damaged the
one before it says what there is to go back to. Removes no file, and repairs none.

The run's new epoch is written first, then the heads of whole fragments, the damaged ones' last. A
kill in between leaves a run that is still refused, and the same word finds the same cut again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from syncline_proto.errors import RunUnknown, StoreDamaged
from syncline_proto.layout import Layout
from syncline_sync.core.falling import goals
from syncline_sync.core.record import Saved
from syncline_sync.entries import Entry
from syncline_sync.files import MEND
from syncline_sync.fragment_store import HEAD, FragmentStore
from syncline_sync.recalled import check_epoch
from syncline_sync.store import RunStore
from syncline_sync.word import Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a fragment's head names, newest first."""

    newest: int
    """Its newest revision, whole or not; where the head is lost, what that may be at most."""
    whole: tuple[Entry, ...]
    """Revisions."""
    damaged: tuple[Path, ...]
    lost: int
    """The newest revision of which a file is damaged; -1: none is."""
    committed_in: int
    """The last epoch that a whole file of it is of."""
    is_synchronous: bool

    @classmethod
    def of(cls, fragment: FragmentStore) -> Kept | None:
        """Read every file that the head names; None if nothing was ever committed.

        Raises:
            StoreDamaged: the head is damaged or lost, and the one before it tells nothing either.
        """
        try:
            entries = fragment.head()
        except StoreDamaged:
            if not (before := fragment.before()):
                raise
            return cls._of_lost_head(fragment, before)
        if entries is None:
            return None
        saved = {entry: fragment.saved_in(entry) for entry in entries}
        whole = [entry for entry, its in saved.items() if its is not None]
        damaged = [entry for entry, its in saved.items() if its is None]
        return cls(
            newest=next(e.revision for e in entries if not e.alone),
            whole=tuple(e for e in whole if not e.alone),
            damaged=tuple(fragment.folder / e.file for e in damaged),
            lost=max((e.revision for e in damaged), default=-1),
            committed_in=_last_epoch(saved.values()),
            is_synchronous=any(e.alone for e in entries),
        )

    @classmethod
    def _of_lost_head(cls, fragment: FragmentStore, before: list[Entry]) -> Kept:
        """What is whole of what the head before it names: nobody knows what is newer."""
        saved = {entry: fragment.saved_in(entry) for entry in before}
        return cls(
            newest=fragment.lost,
            whole=tuple(entry for entry, its in saved.items() if its is not None),
            damaged=(fragment.folder / HEAD,),
            lost=fragment.lost,
            committed_in=_last_epoch(saved.values()),
            is_synchronous=False,
        )

    @property
    def revisions(self) -> list[int]:
        return [entry.revision for entry in self.whole]


def fall_back(store: RunStore, up_to: int) -> str | None:
    """Let a run go on from what is whole of it, where no revision after ``up_to`` is damaged.

    Heavy, and nobody else may have the run open. Every file that counts is read.

    Returns:
        What was done, in a sentence or two; None if nothing is damaged, and then nothing was.

    Raises:
        RunUnknown: there is no such run.
        StoreDamaged: nothing that is kept of a fragment is whole, or a later revision is damaged,
            too, or the run's epoch is lost; nothing was changed.
        StoreError: the disk refuses; say it again once it does not.
    """
    layout = store.load_layout()
    if layout is None:
        raise RunUnknown(
            f"There is no run {store.run} in {store.root} to fall back; check its name, and --data."
        )
    fragments = store.fragments(layout)
    surveyed = {number: Kept.of(fragment) for number, fragment in enumerate(fragments)}
    kept = {number: found for number, found in surveyed.items() if found is not None}
    if not any(found.damaged for found in kept.values()):
        return None
    first = 1 if store.load_settings().warmup_steps else 0
    for found in kept.values():
        _check(found, first)
    _check_covered(store.run, kept.values(), up_to)
    newest = {number: found.newest for number, found in kept.items()}
    to = goals(newest, {number: found.revisions for number, found in kept.items()})
    back = [number for number in kept if to[number] < newest[number]]
    epoch = store.load_epoch()
    check_epoch(store, epoch, {number: found.committed_in for number, found in kept.items()})
    if back:
        epoch += 1
        store.save_epoch(epoch)
    changed = [number for number in kept if number in back or kept[number].damaged]
    # The one that the others go back with comes last: until then it says where to.
    own = {number: (bool(found.damaged), -found.revisions[0]) for number, found in kept.items()}
    for number in sorted(changed, key=own.__getitem__):
        # An older one that is whole stays; no file is removed before the next commit.
        whole = [e for e in kept[number].whole if e.revision <= to[number]]
        # A head that names what is given up must not be what a later word goes back to.
        fragments[number].name(whole, keeps_before=False)
    return _told(layout, kept, to, back, epoch)


def _last_epoch(saved: Iterable[Saved | None]) -> int:
    return max((its.epoch for its in saved if its is not None), default=1)


def _check(found: Kept, first: int) -> None:
    """Refuse a damaged fragment of which no revision from ``first`` on is left.

    Raises:
        StoreDamaged: this fragment is damaged, and has nothing to go on from.
    """
    if not found.damaged:
        return
    if found.is_synchronous:
        raise StoreDamaged(
            f"{found.damaged[0]} is damaged, and the synchronous phase has nothing to fall back "
            f"to but the run's beginning. {MEND}"
        )
    if not any(revision >= first for revision in found.revisions):
        raise StoreDamaged(
            f"{found.damaged[0]} is damaged, and no revision is kept that the run could fall back "
            f"to. {MEND}"
        )


def _check_covered(run: str, kept: Iterable[Kept], up_to: int) -> None:
    """Refuse what the word does not say.

    Raises:
        StoreDamaged: a revision after ``up_to`` is damaged.
    """
    latest = max(kept, key=lambda found: found.lost)
    if latest.lost > up_to:
        raise StoreDamaged(
            f"{latest.damaged[0]} is damaged, and --fall-back {Word(run, up_to)} gives up nothing "
            f"after revision {up_to}. {MEND} Or start it with --fall-back {Word(run, latest.lost)}."
        )


def _told(
    layout: Layout, kept: Mapping[int, Kept], to: Mapping[int, int], back: list[int], epoch: int
) -> str:
    files = ", ".join(str(path) for found in kept.values() for path in found.damaged)
    lost = f"On the operator's word the run goes on without what is damaged ({files})."
    if not back:
        return f"{lost} Nothing but an older revision is lost."
    names = ", ".join(
        f"{layout.fragments[number].name} from revision {kept[number].newest} to {to[number]}"
        for number in back
    )
    return f"{lost} It went back: {names}. Epoch {epoch} begins."
