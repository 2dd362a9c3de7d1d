"""A warm program is what Python would have made of it."""

from __future__ import annotations

import signal

import pytest

from syncline_testing.processes import python
from syncline_testing.warm import warm, warm_ranks

TEXTS = {
    "it ends": "import os, sys; print(sys.argv[1:], os.environ['OURS']); sys.exit(7)",
    "it fails": "print('here'); 1 / 0",
    "it is interrupted": "import sys; sys.stderr.write('there\\n'); raise KeyboardInterrupt",
    "it gives up": "raise SystemExit('no')",
    "it is killed": "import os; os.kill(os.getpid(), 15)",
}


@pytest.mark.long
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_it_says_and_ends_as_a_fresh_process_does(text: str) -> None:
    with (
        python("-c", text, "word", OURS="1") as fresh,
        warm("-c", text, "word", OURS="1") as program,
    ):
        assert program.communicate(60) == fresh.communicate(timeout=60)
        assert program.returncode == fresh.returncode


def test_it_is_a_process_of_its_own_and_hears_signals() -> None:
    text = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    with warm("-c", text) as program:
        assert program.stdout is not None
        assert int(program.stdout.readline()) == program.pid
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(60)
    assert program.returncode == -signal.SIGINT and errors.endswith("KeyboardInterrupt\n")


def test_ranks_are_told_who_they_are() -> None:
    told = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"
    with warm_ranks("-c", f"import os; print(*(os.environ[name] for name in {told}))") as ranks:
        said = [rank.communicate(60)[0] for rank in ranks]
    assert said == ["0 0 2 2 127.0.0.1\n", "1 1 2 2 127.0.0.1\n"]
