"""No process outlives its launcher, however the launcher ends; and how children ended is told."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from syncline.launch import guard, processes, ranks
from syncline.launch.probes import own_error, wait_ready
from syncline.launch.processes import LINE_BYTES_MAX, READ_BYTES_MAX, Command, Crew, Process
from syncline_proto.errors import ProcessFailed, StoreError, TrainingDiverged, Unreachable
from syncline_testing.processes import alive
from syncline_testing.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WAIT_S = 20.0

# Says when it is ready; tells at its end, unless it is killed.
OBEDIENT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
time.sleep(600)
"""
# A child and a grandchild in sessions of their own, as torchrun and data loaders make them.
FAMILY = """
import subprocess, sys, time
below = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', " \
        "'import time; time.sleep(600)', sys.argv[1]], start_new_session=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", below, sys.argv[1]], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def command(folder: Path, script: str, name: str = "child", **how: object) -> Command:
    argv = [sys.executable, "-c", script, str(folder)]
    return Command(name=name, argv=argv, folder=folder, **how)  # pyright: ignore[reportArgumentType]


def until_ready(*outs: Path, ranks: int = 1) -> None:
    until_said("ready", *outs, times=ranks)


def until_said(word: str, *outs: Path, times: int = 1) -> None:
    def have_said() -> bool:
        return all(out.exists() and out.read_text().count(word) == times for out in outs)

    wait_until(have_said, WAIT_S, f"all say {word}")


def until_ended(process: Process) -> None:
    wait_until(lambda: process.exit_code is not None, WAIT_S, f"{process.command.name} has ended")


def test_a_stop_goes_stage_by_stage_and_waits_for_each(tmp_path: Path) -> None:
    script = OBEDIENT.replace('print("bye"', 'print("bye", time.monotonic()')
    with Crew() as crew:
        stages = [crew.start(command(tmp_path, script, f"s{n}", stage=n)) for n in (0, 2, 1)]
        until_ready(*(process.command.out for process in stages))
    ended = [
        float(process.command.out.read_text().split("bye")[1])
        for process in sorted(stages, key=lambda process: -process.command.stage)
    ]
    assert ended == sorted(ended)
    assert not alive(tmp_path)


def test_who_does_not_listen_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start(command(tmp_path, STUBBORN, grace_s=0.3))
        until_ready(process.command.out)
        assert process.exit_code is None
    assert process.exit_code == 128 + signal.SIGKILL
    assert not alive(tmp_path)


def test_descendants_in_sessions_of_their_own_go_too(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start(command(tmp_path, FAMILY))
        until_ready(process.command.out)
        all_there = "the guard and three generations"
        wait_until(lambda: len(alive(tmp_path)) == 4, WAIT_S, all_there, lambda: alive(tmp_path))
    assert not alive(tmp_path)


def test_what_a_dead_child_left_behind_goes_with_it(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start(command(tmp_path, FAMILY.replace("time.sleep(600)\n", "")))
        until_ended(process)
        assert process.exit_code == 0
        assert not alive(tmp_path)


LAUNCHER = """
import sys, time
from pathlib import Path
from syncline.launch.processes import Command, Crew
folder, scripts = Path(sys.argv[1]), sys.argv[2:]
try:
    with Crew() as crew:
        print("started", flush=True)
        for n, script in enumerate(scripts):
            argv = [sys.executable, "-c", script, str(folder)]
            crew.start(Command(name=f"c{n}", argv=argv, folder=folder, stage=n, grace_s=300.0))
        print("complete", flush=True)
        time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("after", ["started", "complete"])
def test_nobody_outlives_the_launcher(tmp_path: Path, sign: signal.Signals, after: str) -> None:
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path), OBEDIENT, FAMILY, OBEDIENT]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            while launcher.stdout.readline().strip() != after:
                assert launcher.poll() is None
            if after == "complete":
                until_ready(*(tmp_path / f"c{n}.out" for n in range(3)))
            launcher.send_signal(sign)
            assert launcher.wait(WAIT_S) == (130 if sign == signal.SIGINT else -signal.SIGKILL)
            wait_until(lambda: not alive(tmp_path), WAIT_S, "all are gone", lambda: alive(tmp_path))
        finally:
            launcher.kill()


def test_a_second_ctrl_c_cuts_the_graces_short(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path), STUBBORN, STUBBORN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            until_ready(*(tmp_path / f"c{n}.out" for n in range(2)))
            launcher.send_signal(signal.SIGINT)
            until_said("asked", tmp_path / "c1.out")
            assert launcher.poll() is None  # in the grace of 300 s
            launcher.send_signal(signal.SIGINT)
            # To kill two that were started may take 14 s, on a machine that hardly moves.
            assert launcher.wait(3 * WAIT_S) == 130
            assert not alive(tmp_path)
        finally:
            launcher.kill()


def test_a_stop_that_is_hurried_before_it_begins_asks_nobody(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start(command(tmp_path, OBEDIENT, grace_s=30.0))
        until_ready(process.command.out)
        crew.hurry()
    assert process.exit_code == 128 + signal.SIGKILL
    assert "bye" not in process.command.out.read_text()
    assert not alive(tmp_path)


def test_the_end_of_a_child_is_told_with_its_last_words(tmp_path: Path) -> None:
    script = "import sys; print('first\\nerror: the loss is NaN', file=sys.stderr); sys.exit(50)"
    with Crew() as crew:
        process = crew.start(command(tmp_path, script, "replica-0"))
        with pytest.raises(TrainingDiverged, match=r"^replica-0: the loss is NaN"):
            wait_ready(process, lambda: False)
        said = process.failure().message
        assert "exit code 50 (DIVERGED)" in said
        assert str(tmp_path / "replica-0.log") in said and "the loss is NaN" in said


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
def test_other_ends_are_told_as_what_they_are(tmp_path: Path, script: str, words: str) -> None:
    with Crew() as crew:
        process = crew.start(command(tmp_path, script))
        until_ended(process)
        found = own_error(process)
    assert isinstance(found, ProcessFailed) and words in found.message


def test_who_ends_without_a_word_on_a_full_disk_is_told_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FULL_BYTES", sys.maxsize)  # every disk is full to who asks that
    with Crew() as crew:
        process = crew.start(command(tmp_path, "raise SystemExit(1)", "control"))
        until_ended(process)
        found = own_error(process)
    assert isinstance(found, StoreError) and found.exit_code == 40
    assert found.message == (
        f"control ended with exit code 1; its log is {tmp_path}/control.log and is empty, since "
        f"the disk of {tmp_path} is full; make room."
    )


def test_a_command_that_cannot_start_is_told(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start(Command(name="none", argv=["/no/such/program"], folder=tmp_path))
        until_ended(process)
        assert process.exit_code == 127
        assert "/no/such/program" in process.failure().message


# The guard as it is, with a child that has ended before the guard knows of it.
QUICK = """
import os, runpy, subprocess, sys
class Quick(subprocess.Popen):
    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
subprocess.Popen = Quick
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_child_that_ends_at_once_has_its_exit_code_told() -> None:
    child = [sys.executable, "-c", "raise SystemExit(7)"]
    argv = [sys.executable, "-I", "-S", "-c", QUICK, guard.__file__, *child]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        assert process.wait(WAIT_S) == 7


def test_waiting_for_readiness_has_a_bound(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start(command(tmp_path, OBEDIENT))
        with pytest.raises(Unreachable, match=r"child\.log"):
            wait_ready(process, lambda: False, within_s=0.2)


def test_lines_come_whole_and_once(tmp_path: Path) -> None:
    (tmp_path / "child.out").write_text("of an earlier life\n")
    script = "import time; print('a\\nb', end='', flush=True); time.sleep(0.3); print('c\\nd')"
    heard: list[str] = []
    with Crew() as crew:
        process = crew.start(command(tmp_path, script))

        def all_heard() -> bool:
            ended = process.exit_code is not None
            heard.extend(process.lines())
            return ended

        wait_until(all_heard, WAIT_S, "it has ended")
    assert heard == ["a", "bc", "d"]


def test_of_a_line_without_an_end_no_more_is_kept_than_a_line_may_have(tmp_path: Path) -> None:
    longest = READ_BYTES_MAX + LINE_BYTES_MAX
    script = f"print('x' * {2 * longest}); print('end')"
    with Crew() as crew:
        process = crew.start(command(tmp_path, script))
        wait_until(lambda: process.exit_code is not None, WAIT_S, "it has ended")
        heard = [line for _ in range(8) for line in process.lines()]
    assert heard[-1] == "end" and len(heard[0]) <= longest


RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
assert os.environ["WORLD_SIZE"] == "3" and os.environ["LOCAL_RANK"] == str(rank)
line = f"{rank} {os.environ['MASTER_PORT']}\\n"
os.write(1, line.encode())  # at once: what is printed comes word by word, among the others'
"""


def ranked(folder: Path, script: str) -> Command:
    argv = [sys.executable, "-I", ranks.__file__, "3", sys.executable, "-c", RANK + script]
    return Command(name="ranks", argv=[*argv, str(folder)], folder=folder)


def test_ranks_know_their_places_and_end_with_0(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start(ranked(tmp_path, ""))
        until_ended(process)
        assert process.exit_code == 0
        told = [line.split() for line in process.lines()]
    assert sorted(rank for rank, _ in told) == ["0", "1", "2"]
    assert len({port for _, port in told}) == 1


# The others end once the launcher has seen that rank 1 has: until then it is there, as a zombie.
AFTER_RANK_1 = """
from pathlib import Path
first = Path(sys.argv[1]) / "first"
if rank == 1:
    first.with_suffix(".new").write_text(str(os.getpid()))
    first.with_suffix(".new").rename(first)
    sys.exit(12)
while not first.exists() or Path(f"/proc/{first.read_text()}").exists():
    time.sleep(0.01)
sys.exit({0: 9, 2: 0}[rank])
"""


def test_the_first_rank_that_fails_gives_the_exit_code(tmp_path: Path) -> None:
    with Crew() as crew:
        process = crew.start(ranked(tmp_path, AFTER_RANK_1))
        until_ended(process)
        assert process.exit_code == 12


def test_a_stop_reaches_every_rank(tmp_path: Path) -> None:
    script = (
        "signal.signal(signal.SIGTERM, lambda *_: (print('drained', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    with Crew() as crew:
        process = crew.start(ranked(tmp_path, script))
        until_ready(process.command.out, ranks=3)
    assert process.exit_code == 0
    assert process.command.out.read_text().count("drained") == 3
    assert not alive(tmp_path)
