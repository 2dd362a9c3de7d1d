"""What an image installs before our own code: the project's requirements with some extras.

Kept apart from the code so that a change in the code does not download torch again. Reads
pyproject.toml of the working directory, writes one requirement a line; installs nothing.

    python docker/requirements.py sync          the project and its extra "sync"
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The requirements of the project and of these extras, in the order of the file.

    Raises:
        KeyError: the project has no such extra.
    """
    project = tomllib.loads(pyproject)["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    lines = requirements(Path("pyproject.toml").read_text(), sys.argv[1].split(","))
    sys.stdout.write("\n".join(lines) + "\n")
