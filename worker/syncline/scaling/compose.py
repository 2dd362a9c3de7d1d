"""A service of a Compose project, by its own command: Compose has no other interface.

Each container is one replica and has its container's id for a name, as in our
``docker-compose.yml``. Never touches another service of the project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from syncline.scaling.core import Observed
from syncline_proto.errors import ConfigError, FileMissing, ProcessFailed

LOOK_S = 60.0
"""A question to the engine takes no longer."""
SCALE_S = 1800.0
"""Nor does what ends containers: each may take its whole stop_grace_period."""
ID_CHARACTERS = 12
"""The host name of a container is so many characters of its id."""


class Compose:
    """One service of one project."""

    def __init__(self, file: str, project: str | None = None, service: str = "worker") -> None:
        """``project``: None for the one that the file names.

        Raises:
            FileMissing: there is no such file.
            ConfigError: Docker is not installed.
        """
        if not os.path.exists(file):
            raise FileMissing(f"--compose: {file} does not exist; give the path of a Compose file.")
        if shutil.which("docker") is None:
            raise ConfigError("docker is not here; Compose is its command.")
        named = ["--project-name", project] if project else []
        self._command = ["docker", "compose", "--file", file, *named]
        self._service = service

    def __str__(self) -> str:
        return f"the service {self._service}"

    def look(self) -> Observed:
        """Count the containers of the service that run or start again.

        Raises:
            ConfigError: Docker is here without Compose.
            ProcessFailed: Compose cannot say.
        """
        states = ["--status", "running", "--status", "restarting"]
        asked = ["ps", "--quiet", *states, self._service]
        ids = self._run(asked, LOOK_S).split()
        names = {one[:ID_CHARACTERS] for one in ids}
        return Observed(
            replicas=len(ids),
            is_own=names.__contains__,
            who_leaves="Compose chooses who leaves, each within its stop_grace_period.",
        )

    def scale(self, replicas: int) -> None:
        """Start more, or end some and wait until they have drained.

        Raises:
            ProcessFailed: Compose could not.
        """
        many = ["--scale", f"{self._service}={replicas}", self._service]
        self._run(["up", "--detach", "--no-recreate", "--no-deps", *many], SCALE_S)

    def _run(self, arguments: Sequence[str], seconds: float) -> str:
        argv = [*self._command, *arguments]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", timeout=seconds
            )
        except OSError as error:
            raise ProcessFailed(f"docker cannot be run: {error.strerror}.") from None
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"{_said(arguments)} took longer than {seconds:g} s.") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            if "docker --help" in lines[-1]:  # Docker's own word for a command that it has not
                raise ConfigError("docker has no compose here; install its Compose plugin.")
            raise ProcessFailed(f"{_said(arguments)} failed: {lines[-1].strip().rstrip('.')}.")
        return done.stdout


def _said(arguments: Sequence[str]) -> str:
    return f"docker compose {arguments[0]}"
