"""A folder while an export writes to it: signed first; what is new in it goes where that fails.

What was written over does not come back.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from syncline.train.exported import ORIGIN, Origin, sign
from syncline_proto.errors import ConfigError


@contextmanager
def exporting(out: Path, origin: Origin) -> Iterator[None]:
    """Sign the folder ``out``, and let the caller write to it.

    Raises:
        ConfigError: it cannot be written; what is new in it is gone again.
    """
    was_there = out.exists()
    before = _names(out)
    try:
        sign(out, origin)
        yield
        _open_weights(out)
    except BaseException as error:  # Ctrl+C too
        _take_back(out, before, was_there=was_there)
        if not isinstance(error, (OSError, SafetensorError)):
            raise
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConfigError(
            f"cannot export to {out}: {why}; make room on its disk, or choose another folder."
        ) from None


def _open_weights(out: Path) -> None:
    """Let who may read the folder's other files read its weights: safetensors' are our own's."""
    mode = stat.S_IMODE((out / ORIGIN).stat().st_mode)
    for path in out.glob("*.safetensors"):
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _take_back(folder: Path, before: set[str], *, was_there: bool) -> None:
    with suppress(OSError):
        for name in _names(folder) - before:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not was_there:
            folder.rmdir()
