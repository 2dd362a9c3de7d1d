"""The store: every committed round as an immutable file, and heads that name what counts.

    ROOT/runs/RUN/run.json                        the run's settings
    ROOT/runs/RUN/layout.json                     the layout, once and for all
    ROOT/runs/RUN/epoch.json                      the run's epoch; without it, 1
    ROOT/runs/RUN/epoch.there                     empty: the run has an epoch.json, or is damaged
    ROOT/runs/RUN/origin.json                     of a run that was restored: from what (aside.py)
    ROOT/runs/RUN/FRAGMENT/r00000012.safetensors  parameters, momentum; the rest as metadata
                                                  (int8 down: in bf16, what is published, too)
    ROOT/runs/RUN/FRAGMENT/g00000003.safetensors  mean gradient of a step of the synchronous phase
    ROOT/runs/RUN/FRAGMENT/o00000000.safetensors  parameters offered at the end of that phase
    ROOT/runs/RUN/FRAGMENT/head.json              the files that count, newest first, with CRC-32C
    ROOT/runs/RUN/FRAGMENT/head.before.json       the head before it, where the disk has hard links
    ROOT/runs/RUN/FRAGMENT.begun                  empty: the fragment has a head, or is damaged
    ROOT/runs/RUN/FRAGMENT.behind                 empty: the newest published may not be here

Beside ROOT/runs lie what a checkpoint pins (pins.py) and runs that are being restored (aside.py),
whose service this is (seating.py), the last membership that was heard, and the owner's lock.
A commit is: write the file, sync it, write a new head, sync it, rename it over the old one, sync
the folder. A process killed at any instruction leaves the old head or the new one, and both name
whole files; who starts then syncs the folders before anybody hears of what they name. What no head
names is removed by whoever commits, never by whoever reads. A write that fails raises StoreError:
the service stops rather than guess. Every JSON is sealed with its CRC-32C, and every file of a
fragment says whose it is, so that nothing that was changed or put in another's place is taken for
what was committed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from syncline_proto.errors import StoreDamaged
from syncline_proto.layout import Layout, layout_from_json, layout_to_json
from syncline_proto.settings import RunSettings
from syncline_sync.entries import Place
from syncline_sync.files import (
    MEND,
    SEAL,
    is_there,
    make_folder,
    make_mark,
    read,
    readable,
    replace_file,
    sync_folder,
    understood,
    writing,
)
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.saved import COUNT_MAX


class RunStore:
    """The files of one run."""

    def __init__(self, root: Path, run: str) -> None:
        self.root, self.run = root, run
        self.folder = root / "runs" / run

    @property
    def has_settings(self) -> bool:
        return is_there(self.folder / "run.json")

    def can_be_opened(self) -> bool:
        """Whether a layout and settings are there, whole or not."""
        return is_there(self.folder / "layout.json") and self.has_settings

    @property
    def epoch_file(self) -> Path:
        return self.folder / "epoch.json"

    def begin(self) -> None:
        """Make the run's folder, once, below a root that is there; nothing else ever does.

        Raises:
            StoreError: the disk refuses, or the root is gone.
        """
        for folder in (self.folder.parent, self.folder):
            make_folder(folder)

    def settle(self) -> None:
        """See that what is here outlasts a power cut, before anybody is told of it.

        A kill may have come between a name and the sync of its folder; contents came before.

        Raises:
            StoreError: the disk refuses.
        """
        with readable(self.folder):
            below = sorted(path for path in self.folder.glob("*") if path.is_dir())
        for folder in (self.root, self.folder.parent, self.folder, *below):
            with writing(folder):
                if folder.is_dir():
                    sync_folder(folder)

    def save_layout(self, layout: Layout) -> None:
        self._save("layout.json", layout_to_json(layout))

    def load_layout(self) -> Layout | None:
        """The run's layout; None if no replica has ever opened the run.

        Raises:
            StoreDamaged: it is damaged, or lost: there are fragments of it.
        """
        path = self.folder / "layout.json"
        if not is_there(path):
            if any(self.folder.glob("*.begun")):
                raise StoreDamaged(f"{path} is missing, but fragments of the run are there. {MEND}")
            return None
        with understood(path):
            return layout_from_json(SEAL.open(read(path)))

    def save_settings(self, settings: RunSettings) -> None:
        self._save("run.json", settings.model_dump_json(indent=1))

    def load_settings(self) -> RunSettings:
        path = self.folder / "run.json"
        with understood(path):
            return RunSettings.model_validate_json(SEAL.open(read(path)))

    def load_epoch(self) -> int:
        """How often the run's revisions went back, and 1.

        Raises:
            StoreDamaged: it is damaged, or lost.
        """
        path = self.epoch_file
        if not is_there(path):
            if is_there(path.with_suffix(".there")):
                raise StoreDamaged(f"{path} is missing, and the run has gone back. {MEND}")
            return 1
        with understood(path):
            epoch = json.loads(SEAL.open(read(path)))["epoch"]
            if type(epoch) is not int or not 1 <= epoch <= COUNT_MAX:
                raise ValueError("it names no epoch")
            return epoch

    def save_epoch(self, epoch: int) -> None:
        self._save(self.epoch_file.name, json.dumps({"epoch": epoch}))
        make_mark(self.epoch_file.with_suffix(".there"))

    def fragments(
        self, layout: Layout, numbers: Sequence[int] | None = None
    ) -> list[FragmentStore]:
        """The stores of the fragments of these numbers, in their order; of all by default."""
        fingerprint = layout.fingerprint()
        places = [
            Place(run=self.run, fragment=i, layout=fingerprint, numel=layout.fragments[i].numel)
            for i in (range(len(layout.fragments)) if numbers is None else numbers)
        ]
        numel = sum(place.numel for place in places)
        return [
            FragmentStore(self.folder / f"{place.fragment:05d}", place, numel - place.numel)
            for place in places
        ]

    def _save(self, name: str, body: str) -> None:
        replace_file(self.folder / name, SEAL.close(body))
