"""The built-in corpus: the source of the running Python's standard library.

Real text that is on every machine, network or not: some ten megabytes of English prose and code.
Each file is one document. Tests are left out, since many distributions strip them and the corpus
should be the same with and without; so are files made when Python was built, and whatever is not
UTF-8. It never reads site-packages.
"""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from syncline.data.errors import DataError

LEFT_OUT = frozenset(
    {"__pycache__", "dist-packages", "idle_test", "lib-dynload", "site-packages", "test", "tests"}
)
# A library kept as a zip or as bytecode only has no text to train on.
BYTES_MIN = 1 << 20


def stdlib_folder() -> Path:
    """The folder of the standard library, also from within a virtual environment."""
    return Path(sysconfig.get_paths()["stdlib"])


def builtin_files(folder: Path | None = None) -> list[tuple[str, Path]]:
    """The corpus's files as (relative name, path), in the order of their names.

    Raises:
        DataError: there is no library source on this machine.
    """
    root = stdlib_folder() if folder is None else folder
    found = [(path.relative_to(root).as_posix(), path) for path in _sources_under(root)]
    found.sort()
    if sum(path.stat().st_size for _, path in found) < BYTES_MIN:
        raise DataError(
            f"the built-in corpus is the standard library's source, and {root} has none; "
            "give a text file instead."
        )
    return found


def _sources_under(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        # Folders named config-… hold the build's own scripts and differ on every machine.
        subfolders[:] = [
            name for name in subfolders if name not in LEFT_OUT and not name.startswith("config-")
        ]
        for name in names:
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                yield Path(folder, name)
