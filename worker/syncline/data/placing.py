"""A folder that appears whole or not at all.

Used for what takes long to make and must never be met half made. It never removes a folder that
is not prepared data, whatever it is asked to overwrite.
"""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from syncline.data.errors import DataError
from syncline.data.manifest import is_prepared
from syncline.disk import to_disk


@contextmanager
def new_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a folder to fill; when the block ends well, it becomes ``out``, else it is removed.

    Raises:
        DataError: ``out`` exists and may not be replaced, or cannot be written.
    """
    # Not the process's id: in a container it is the same after a kill -9.
    hidden = out.parent / f".{out.name}.preparing-{secrets.token_hex(4)}"
    try:
        _refuse(out, overwrite)
        out.parent.mkdir(parents=True, exist_ok=True)
        hidden.mkdir()
        yield hidden
        _sync_files(hidden)
        _refuse(out, overwrite)  # somebody else may have made it meanwhile
        _replace(hidden, out)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _refuse(out: Path, overwrite: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    is_empty = out.is_dir() and not any(out.iterdir())
    if out.is_symlink() or not (is_prepared(out) or is_empty):
        raise DataError(
            f"{out} exists already and is not prepared data, so it is never overwritten; choose "
            "another place, or remove it yourself."
        )
    if not overwrite:
        raise DataError(f"{out} exists already; choose another place, or --overwrite.")


def _replace(hidden: Path, out: Path) -> None:
    """Put ``hidden`` in the place of ``out``; the old one is out of the way before it is gone."""
    old = hidden.with_name(f"{hidden.name}-old")
    if out.exists():
        out.rename(old)
    try:
        hidden.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise
    to_disk(out.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_files(folder: Path) -> None:
    for path in folder.iterdir():
        to_disk(path)
    to_disk(folder)
