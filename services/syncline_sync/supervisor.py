"""``syncline-sync --shards K``: K services from one command, each in a process of its own.

Starts them, ends them together, and starts one again that died, on its own ports and store: what it
owns stalls meanwhile, and the others go on. One that a restart would not mend (its settings, its
disk) ends all, with its exit code; so does what one says when it is told to end, and then cannot
write the last of its rounds. Being killed ends all, too: each child looks after its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence

import structlog

from syncline_proto.errors import ConfigError, PortInUse, ProcessFailed, StoreError
from syncline_proto.locks import only_owner
from syncline_sync.durability import NOTHING_LOST
from syncline_sync.seating import data_folder, folder_of, take_seat
from syncline_sync.settings import PORTS, SyncSettings, flag_of

log = structlog.get_logger()

PORTS_APART = 10
"""Between the ports of one service and of the next."""

DEATHS_MAX, DEATHS_WITHIN_S = 5, 60.0
"""A child that dies more often than this is not started again."""

PAUSE_S = 0.5
"""Before a child is started again."""

LOOK_S = 1.0
"""Between two looks of a child after its parent."""

STOP_S = 28.0
"""From the signal to SIGKILL; a service takes 26 s at most, and Kubernetes waits 30."""

HOPELESS = (*range(10, 20), StoreError.exit_code, StoreError.exit_code + 1)
"""Exit codes of wrong settings and of a disk that refuses."""


def settings_of(settings: SyncSettings, index: int) -> SyncSettings:
    """The settings of one of the services: its own ports (0 stays 0), name and folder.

    Raises:
        ConfigError: there is no such port.
    """
    apart = PORTS_APART * index
    ports = {key: port + apart if (port := getattr(settings, key)) else 0 for key in PORTS}
    host, _, told = settings.advertise.rpartition(":")
    if max(*ports.values(), int(told or 0) + apart) > 65535:
        raise ConfigError(
            f"--shards: each service takes the ports {PORTS_APART} above those of the one before "
            f"it, and for {settings.shards} there are not so many; choose lower ports."
        )
    own = {
        "index": index,
        "parent": os.getpid(),
        "data": folder_of(settings.data, index),
        "name": settings.name and f"{settings.name}-{index}",
        "advertise": f"{host}:{int(told) + apart}" if told else "",
    }
    return settings.model_copy(update={**ports, **own})


def check_apart(children: Sequence[SyncSettings]) -> None:
    """Refuse ports of which two services would take the same one.

    Raises:
        ConfigError: there are such; the message names their flags.
    """
    taken: dict[int, str] = {}
    for child in children:
        for key in PORTS:
            whose = f"{flag_of(key)} of {child.own_name}"
            port = getattr(child, key)
            if port and (other := taken.setdefault(port, whose)) != whose:
                raise ConfigError(
                    f"--shards: {other} and {whose} would both be {port}, since each service takes "
                    f"the ports {PORTS_APART} above those of the one before it; choose ports that "
                    f"do not lie a multiple of {PORTS_APART} apart."
                )


def environment(settings: SyncSettings) -> dict[str, str]:
    """Our own, and every setting as a variable: a token is in no list of processes."""
    ours = {
        f"SYNCLINE_SYNC_{key.upper()}": "" if value is None else str(value)
        for key, value in settings
    }
    return {**os.environ, **ours}


async def supervise(settings: SyncSettings) -> signal.Signals:
    """Keep one process for each service until SIGTERM or SIGINT, and return which.

    Raises:
        ConfigError: the folder is another's, or in use; ports are too many, or two the same.
        StoreError: nothing can be written there.
        ChildFailed: one ended with what a restart does not mend, or again and again; or it did not
            end well when it was told to.
    """
    children = [settings_of(settings, index) for index in range(settings.shards)]
    check_apart(children)
    data = data_folder(settings.data)
    end: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def ask(sign: signal.Signals) -> None:
        if not end.done():
            end.set_result(sign)

    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, ask, sign)
    with only_owner(data / "lock", f"Other sync services keep their stores in {data}", "--data"):
        take_seat(data, None, settings.shards)
        keeping = [asyncio.create_task(_keep(child)) for child in children]
        try:
            await asyncio.wait([end, *keeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            first = [task.exception() for task in keeping if task.done()]
            for task in keeping:
                task.cancel()
            outcomes = await asyncio.gather(*keeping, return_exceptions=True)
    for outcome in (*first, *outcomes):  # what ended all comes before what came of that
        if isinstance(outcome, Exception):
            raise outcome
    return await end


class ChildFailed(ProcessFailed):
    """A service ended for good; ``ended_with`` is its exit code, which becomes ours."""

    def __init__(self, message: str, ended_with: int) -> None:
        super().__init__(message)
        self.ended_with = ended_with


async def _keep(settings: SyncSettings) -> None:
    """Keep one service at work, until cancelled.

    Raises:
        ChildFailed: it ended with what a restart does not mend, or again and again; or, cancelled,
            not well.
    """
    name, deaths = settings.own_name, deque[float](maxlen=DEATHS_MAX)
    now_s = asyncio.get_running_loop().time
    while True:
        code = await _one_life(settings)
        if code in HOPELESS:
            said = f"{name} ended with exit code {code}; its words are above."
            if code == PortInUse.exit_code and settings.index:
                said += f" Its ports are {PORTS_APART} above those of the service before it."
            raise ChildFailed(said, code)
        if len(deaths) == DEATHS_MAX and now_s() - deaths[0] < DEATHS_WITHIN_S:
            raise ChildFailed(
                f"{name} ended {DEATHS_MAX + 1} times within {DEATHS_WITHIN_S:g} s (exit code "
                f"{code}); see its log.",
                ProcessFailed.exit_code,
            )
        deaths.append(now_s())
        settings = settings.model_copy(update={"fall_back": ""})  # that was said for one start
        log.warning("a service ended; starting it again", service=name, exit_code=code)
        await asyncio.sleep(PAUSE_S)


async def _one_life(settings: SyncSettings) -> int:
    """Run a service to its end; cancelled, end it and see it out.

    Raises:
        ChildFailed: cancelled, it ended with an error, or not at all.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "syncline_sync",
        stdin=asyncio.subprocess.DEVNULL,
        env=environment(settings),
        start_new_session=True,  # Ctrl+C is ours to hand on
    )
    log.info("started", service=settings.own_name, pid=child.pid)
    try:
        return await child.wait()
    except asyncio.CancelledError:
        if child.returncode is None:
            await _end(child, settings.own_name)
        raise


async def _end(child: asyncio.subprocess.Process, name: str) -> None:
    """Tell a service to end, and see that it does.

    Raises:
        ChildFailed: it ended with an error, or had to be killed.
    """
    with contextlib.suppress(ProcessLookupError):
        # Its own ``terminate`` may find it ended, and then takes its exit code from asyncio.
        os.kill(child.pid, signal.SIGTERM)
    try:
        code = await asyncio.wait_for(child.wait(), STOP_S)
    except TimeoutError:
        child.kill()
        await child.wait()
        raise ChildFailed(
            f"{name} did not end within {STOP_S:g} s, and was killed. See its log, then "
            f"{NOTHING_LOST}",
            ProcessFailed.exit_code,
        ) from None
    if code > 0:  # below: a signal, such as ours before it could heed any
        raise ChildFailed(f"{name} ended with exit code {code}; its words are above.", code)


async def outlived(parent: int) -> None:
    """Return once the process that began us is gone: nobody else would end us."""
    while os.getppid() == parent:
        await asyncio.sleep(LOOK_S)
    log.warning("the process that began this service is gone")
