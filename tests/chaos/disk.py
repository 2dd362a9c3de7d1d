"""A disk that forgets: what may be left of a folder after a power cut, at any moment of some work.

Follows what a block does to a folder, act by act. What was written to a file since it was last
synced may be there, be missing, be zeros, or be there in part; what happened to names since their
folder was last synced may have come to pass in order up to some act, as journals of file systems
have it, or, ``in_any_order``, each act for itself, which is all that POSIX promises.

A process that is merely killed loses nothing that it has written: tests/unit/sync/test_store.py
has those moments.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Names = dict[str, int]
"""Path below the root -> number of the file, which is its own for ever."""
Act = dict[str, int | None]
"""What one act does to names, all or nothing; None: the name goes."""
Files = dict[str, bytes]

FOLDER = -1
"""The number of every folder."""


@dataclass(slots=True)
class Moment:
    """What is safe, and what is not, between two acts."""

    names: Names
    pending: list[Act]
    synced: dict[int, bytes]
    written: dict[int, bytes]
    returned: int
    """How many steps of the work had returned to their caller."""
    under_way: bool
    """Whether the next step had begun."""


@dataclass(slots=True)
class Disk:
    """What has become of ``root`` since this was made; use it in ``watched``."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    returned: int = 0
    _names: Names = field(default_factory=dict)
    _pending: list[Act] = field(default_factory=list)
    _synced: dict[int, bytes] = field(default_factory=dict)
    _written: dict[int, bytes] = field(default_factory=dict)
    _now: Names = field(default_factory=dict)
    _inodes: dict[int, int] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def watched(self, patch: pytest.MonkeyPatch) -> Disk:
        """From now on every act is seen. What is there already is safe, unless it was told apart
        (``goes_on``)."""
        if not self._now:
            self._look()
            self._names, self._pending = dict(self._now), []
            self._synced = dict(self._written)
        self._remember()
        acts = "fsync fdatasync replace rename link unlink mkdir rmdir open"
        for name in acts.split():
            patch.setattr(os, name, self._seen(name, getattr(os, name)))
        return self

    def goes_on(self, moment: Moment) -> Disk:
        """Be the disk of another process, that comes after a kill at that moment: all that was
        written is there, and as much of it is safe as was. ``root`` is empty."""
        names = dict(moment.names)
        for act in moment.pending:
            _apply(names, act)
        for name in sorted(n for n in names if _has_folders(names, n)):
            number, path = names[name], self.root / name
            if number == FOLDER:
                path.mkdir()
            else:
                path.write_bytes(moment.written[number])
                self._inodes[path.stat().st_ino] = number
        self._numbers = itertools.count(max(moment.written, default=0) + 1)
        self._look()
        self._names, self._pending = dict(moment.names), [dict(act) for act in moment.pending]
        self._synced, self._written = dict(moment.synced), dict(moment.written)
        return self

    def step(self, work: Callable[[], object]) -> None:
        """Do a step; what it has made durable counts from its return on."""
        work()
        self._look()
        self.returned += 1
        self._remember(under_way=False)

    def _seen(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def seen(*args: Any, **kwargs: Any) -> Any:
            self._look()
            self._remember()
            done = act(*args, **kwargs)
            self._look()
            if "sync" in name:
                self._sync(args[0])
            self._remember()
            return done

        return seen

    def _look(self) -> None:
        """Find what has changed since the last look: one act on names at most, and contents."""
        now: Names = {}
        inodes: dict[int, int] = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if path.is_dir():
                now[name] = FOLDER
                continue
            inode = path.stat().st_ino
            known = self._inodes.get(inode)
            now[name] = inodes[inode] = next(self._numbers) if known is None else known
            self._written[now[name]] = path.read_bytes()
        changed = sorted(n for n in now.keys() | self._now.keys() if now.get(n) != self._now.get(n))
        if changed:
            self._pending.append({name: now.get(name) for name in changed})
        self._now, self._inodes = now, inodes

    def _sync(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not path.is_relative_to(self.root):
            return
        if path.is_dir():
            within = "" if path == self.root else str(path.relative_to(self.root))
            for act in list(self._pending):
                if _is_within(act, within):
                    _apply(self._names, act)
                    self._pending.remove(act)
        else:
            number = self._inodes[os.fstat(handle).st_ino]
            self._synced[number] = self._written[number]

    def _remember(self, under_way: bool = True) -> None:
        self.moments.append(
            Moment(
                dict(self._names),
                [dict(act) for act in self._pending],
                dict(self._synced),
                dict(self._written),
                self.returned,
                under_way,
            )
        )


def left(moment: Moment, *, in_any_order: bool) -> Iterator[Files]:
    """Each folder that a power cut at that moment may leave; but for equal ones close by."""
    acts = moment.pending
    if in_any_order:
        chosen = itertools.chain.from_iterable(
            itertools.combinations(acts, n) for n in range(len(acts) + 1)
        )
    else:
        chosen = (tuple(acts[:n]) for n in range(len(acts) + 1))
    for some in chosen:
        names = dict(moment.names)
        for act in some:
            _apply(names, act)
        files = {n: f for n, f in names.items() if f != FOLDER and _has_folders(names, n)}
        safe = {f: moment.synced.get(f, b"") for f in files.values()}
        yield {name: safe[file] for name, file in files.items()}
        for torn in sorted(f for f in safe if safe[f] != moment.written[f]):
            for content in _torn(moment.written[torn]):
                yield {n: content if f == torn else safe[f] for n, f in files.items()}


def _torn(whole: bytes) -> Iterator[bytes]:
    """What may be there of bytes that were written and not synced."""
    half = len(whole) // 2
    yield from (whole, whole[:1], whole[:half], whole[:-1], bytes(len(whole)))
    yield whole[:half] + bytes(len(whole) - half)
    yield bytes(half) + whole[half:]


def _is_within(act: Act, within: str) -> bool:
    """Whether an act is durable with this folder: that of what came, or else of what went.

    What is below a folder that comes or goes, comes and goes with it.
    """
    heads = [name for name in act if os.path.dirname(name) not in act]
    came = [name for name in heads if act[name] is not None]
    return all(os.path.dirname(name) == within for name in came or heads)


def _apply(names: Names, act: Act) -> None:
    for name, file in act.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _has_folders(names: Names, name: str) -> bool:
    return all(str(folder) in names for folder in list(Path(name).parents)[:-1])


def cuts(disk: Disk, root: Path, *, in_any_order: bool) -> Iterator[tuple[Moment, Path]]:
    """Each folder that a power cut may have left, made below ``root``, and at which moment."""
    seen: set[bytes] = set()
    for moment in disk.moments:
        for files in left(moment, in_any_order=in_any_order):
            mark = repr((moment.returned, moment.under_way, sorted(files.items()))).encode()
            if mark not in seen:
                seen.add(mark)
                folder = root / f"cut{len(seen)}"
                restore(folder, files)
                yield moment, folder


def restore(root: Path, files: Files) -> None:
    """Make a folder as a power cut has left it."""
    root.mkdir(parents=True)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
