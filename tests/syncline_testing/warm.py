"""Programs as processes that have PyTorch and the trainer loaded before they begin.

Loading takes 5 to 8 CPU seconds, nearly all that a small program of a test costs. Here
multiprocessing's fork server does it once for everybody whom this process starts. What runs is the
program itself, with arguments, variables, output, signals and an exit code of its own; so this is
for what a program does once it is loaded. Never for what happens while it loads, nor where one is
looked for by its command line, which is the fork server's.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO

from syncline_testing.cluster import free_ports
from syncline_testing.processes import environment

LOADED = [
    *("syncline.train.loop", "torch.distributed.fsdp", "syncline.replica"),
    *("syncline_control.command", "syncline_sync.command", "syncline_testing.compiled"),
]
"""What every fork begins with."""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(LOADED)


class Program:
    """One that was started, with what tests ask of ``subprocess.Popen``."""

    def __init__(
        self, arguments: Sequence[str], variables: dict[str, str], log: Path | None = None
    ) -> None:
        """``log``: where both outputs go; else they are ``stdout`` and ``stderr``."""
        self._arguments = arguments
        with ExitStack() as ours:
            streams: list[IO[str]] = []
            to: list[Connection] = []
            for _ in range(0 if log else 2):
                reader, writer = FORKS.Pipe(duplex=False)
                with reader:
                    streams.append(os.fdopen(os.dup(reader.fileno())))
                to.append(ours.enter_context(writer))
            self.stdout, self.stderr = streams or (None, None)
            self._process = FORKS.Process(target=_play, args=(arguments, variables, to or log))
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._arguments, timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """All that it still says, once it has ended."""
        assert self.stdout is not None and self.stderr is not None
        with ThreadPoolExecutor(2) as pool:
            said = [pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
        out, err = (one.result() for one in said)
        return out, err

    def close(self) -> None:
        """Nothing of it is left."""
        self.kill()
        self.wait()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def warm(*arguments: str, log: Path | None = None, **ours: str) -> Iterator[Program]:
    """Start what ``python ARGUMENTS`` would be (``-m MODULE``, ``-c TEXT`` or a file, and its own).

    ``log``: where both outputs go; else they are streams. ``ours``: variables of its environment,
    as in ``processes.python``.
    """
    program = Program(arguments, environment(**ours), log)
    try:
        yield program
    finally:
        program.close()


@contextmanager
def warm_ranks(
    *arguments: str, count: int = 2, logs: Sequence[Path] = (), **ours: str
) -> Iterator[list[Program]]:
    """Start it once for each rank, with torchrun's variables. ``logs``: as ``warm``, for each."""
    (port,) = free_ports(1)
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    shared = {**ours, **sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with ExitStack() as started:
        programs: list[Program] = []
        for rank, log in enumerate(logs or [None] * count):
            own = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            programs.append(started.enter_context(warm(*arguments, log=log, **shared, **own)))
        yield programs


def begun(command: Sequence[str], log: Path) -> Program:
    """As ``cluster.executed``, but loaded before it begins: a cluster is up in half the time."""
    return Program(command[1:], environment(), log)


def _play(
    arguments: Sequence[str], variables: dict[str, str], to: Sequence[Connection] | Path
) -> None:
    """In the fork: be that program."""
    if isinstance(to, Path):
        with to.open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    else:
        for number, writer in enumerate(to, start=1):
            with writer:
                os.dup2(writer.fileno(), number)
    os.environ.clear()
    os.environ.update(variables)
    try:
        _run(list(arguments))
    except SystemExit:
        raise
    except BaseException as error:
        shown = _from_the_program_on(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        sys.stdout.flush()
        if isinstance(error, KeyboardInterrupt):  # then Python ends by the signal
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


def _run(arguments: list[str]) -> None:
    match arguments:
        case ["-m", module, *own]:
            sys.argv = [module, *own]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", text, *own]:
            sys.argv = ["-c", *own]
            exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
        case _:
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")


def _from_the_program_on(frames: TracebackType | None) -> TracebackType | None:
    """Without ours and runpy's, which no program has."""
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if file != __file__ and "runpy" not in file and "multiprocessing" not in file:
            break
        frames = frames.tb_next
    return frames
