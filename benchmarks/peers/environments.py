"""The environments of the peers: one each, made where it is missing, with pinned versions.

A peer never shares an environment with Syncline or with another peer: what one of them pins is
nobody else's concern. One that cannot be installed has a reason in one sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
PINS = {
    "torchft": ((TORCH, "numpy>=2"), (TORCH, "torchft==0.2.0")),
    "hivemind": ((TORCH, "numpy>=2", "setuptools", "wheel"), (TORCH, "hivemind==1.1.12")),
    "flower": (("numpy>=2",), ("flwr==1.41.0",)),
}
"""What is installed in each, one group after the other: hivemind is built with what is there."""
MARK = "installed.json"
"""What is in an environment; written last."""
INSTALL_S = 1800.0


class CannotInstall(Exception):
    """Why a peer has no environment, as one sentence."""


def default_folder() -> Path:
    """Where environments are kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "syncline" / "peers"


def is_there(peer: str, folder: Path) -> bool:
    """Whether a peer's environment is whole, and as it is pinned."""
    mark = folder / peer / MARK
    return mark.exists() and mark.read_text() == json.dumps(PINS[peer])


def python_of(peer: str, folder: Path) -> Path:
    """The python of a peer's environment, which is made first where it is not whole.

    Raises:
        CannotInstall: it could not be.
    """
    home, groups = folder / peer, PINS[peer]
    python = home / "bin" / "python"
    if is_there(peer, folder):
        return python
    pin = groups[-1][-1]
    print(f"Installing {pin} into {home}; this takes some minutes.", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    for wishes in groups:
        _pip(python, pin, wishes)
    (home / MARK).write_text(json.dumps(groups))
    return python


def _pip(python: Path, pin: str, wishes: tuple[str, ...]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", *wishes]
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=env, timeout=INSTALL_S
        )
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"pip did not install {pin} within {INSTALL_S:g} s.") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = errors[-1] if errors else f"exit code {done.returncode}"
        raise CannotInstall(f"pip could not install {pin}: {why}")
