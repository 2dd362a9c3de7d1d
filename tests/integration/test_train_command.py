"""``python -m syncline.train`` with what is wrong: one sentence on standard error, an exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from syncline_testing.processes import python
from syncline_testing.training import STEP_TOKENS, tiny_data, tiny_job, to_toml
from syncline_testing.warm import Program, warm


def command(*arguments: str) -> AbstractContextManager[Program]:
    return warm("-m", "syncline.train", *arguments)


def ended(process: subprocess.Popen[str] | Program) -> tuple[int | None, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    path = folder / "job.toml"
    path.write_text(to_toml(tiny_job(tiny_data(folder / "tokens"), steps=100_000)))
    return path


def test_a_wrong_job_ends_in_one_sentence(tmp_path: Path, job: Path) -> None:
    """Told before torch is imported, so each is quick."""
    with python("-m", "syncline.train", str(tmp_path / "no.toml")) as missing:
        assert ended(missing) == (
            12,
            f"error: cannot read the job {tmp_path / 'no.toml'}: No such file or directory; "
            "give the path of a TOML file.\n",
        )
    with python("-m", "syncline.train", str(job), "--set", "train.micro_bach=2") as misspelt:
        code, errors = ended(misspelt)
    assert code == 10
    assert errors.startswith(
        "error: --set: train.micro_bach is not a setting; did you mean train.micro_batch?"
    )
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "control", "code", "sentence"),
    [
        (["--replica", "Bad Name"], "", 10, "The replica name 'Bad Name' must be "),
        ([], "ftp://one", 10, "The control plane's address 'ftp://one' cannot be used, since "),
        (["--resume"], "", 10, "--resume needs checkpoint.folder; set it in the job."),
        (["--resume"], "http://one", 10, "--resume needs checkpoint.folder; set it in the job."),
        (
            ["--resume", "--set", "checkpoint.folder=kept"],
            "",
            12,
            "there is no checkpoint in kept/tiny/alone; start without --resume.",
        ),
    ],
)
def test_who_cannot_take_part_or_go_on_is_told_before_pytorch_is_loaded(
    job: Path, asked: list[str], control: str, code: int, sentence: str
) -> None:
    """There is none here to load: who tries says so instead."""
    without = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from syncline.train.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    with python("-c", without, str(job), *asked, SYNCLINE_CONTROL=control) as process:
        ended_with, errors = ended(process)
    assert errors.startswith(f"error: {sentence}") and errors.count("\n") == 1
    assert ended_with == code


def test_what_only_building_shows_ends_in_one_sentence(tmp_path: Path, job: Path) -> None:
    with command(str(job), "--set", f"data.path={tmp_path}") as process:
        code, errors = ended(process)
    assert code == 13
    assert errors.startswith(f"error: {tmp_path} is not prepared data") and errors.count("\n") == 1


@pytest.mark.long
def test_a_dead_control_plane_ends_in_one_sentence(job: Path) -> None:
    there = ("--control", "http://127.0.0.1:1", "--progress", "none")
    with python("-m", "syncline.cli", "train", str(job), *there) as process:
        code, errors = ended(process)
    assert code == 30
    said = errors.splitlines()[-1]
    assert said.startswith("error: ") and "http://127.0.0.1:1" in said
    assert errors.count("error: ") == 1 and "Traceback" not in errors


def test_ctrl_c_ends_it_with_130(job: Path) -> None:
    code, errors = interrupted(job)
    assert code == 130
    assert "Traceback" not in errors


def interrupted(job: Path, *settings: str, after: int = 1) -> tuple[int | None, str]:
    """Train with these settings until so many lines are told, then Ctrl+C."""
    given = [word for one in settings for word in ("--set", one)]
    with command(str(job), "--progress", "json", *given) as process:
        assert process.stdout is not None
        assert '"event": "start"' in process.stdout.readline()
        for _ in range(after - 1):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        return ended(process)


def test_ctrl_c_says_what_is_kept(job: Path, tmp_path: Path) -> None:
    _, errors = interrupted(job)
    said = errors.splitlines()[-1]
    assert said.startswith("Interrupted after inner step ")
    assert said.endswith("; nothing of it is kept: set checkpoint.folder.")
    folder = f"checkpoint.folder={tmp_path}/kept"
    _, errors = interrupted(job, folder)
    assert "nothing of it is kept: no checkpoint was due yet. SIGTERM" in errors.splitlines()[-1]
    _, errors = interrupted(job, folder, "checkpoint.every_steps=1", after=4)
    newest = max((tmp_path / "kept").glob("*/*/step-*"))
    assert f"; --resume goes on from {newest}. SIGTERM" in errors.splitlines()[-1]


def test_with_json_standard_output_is_the_end_alone(job: Path) -> None:
    budget = ("--set", f"run.token_budget={2 * STEP_TOKENS}")
    with command(str(job), *budget, "--json", "--progress", "json") as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    ending = json.loads(out)
    assert ending["reason"] == "budget" and ending["inner_step"] == 2
    assert '"event": "progress"' in errors


def test_who_keeps_nothing_of_the_model_says_so(tmp_path: Path, job: Path) -> None:
    short = ("--set", f"run.token_budget={STEP_TOKENS}", "--progress", "none")
    sentence = "The model is not saved: set export.folder.\n"
    with command(str(job), *short) as kept_nowhere:
        code, errors = ended(kept_nowhere)
        assert code == 0 and errors.count(sentence) == 1
    with command(str(job), *short, "--set", f"export.folder={tmp_path}/model") as kept:
        code, errors = ended(kept)
        assert code == 0 and sentence not in errors


def test_a_fault_of_ours_ends_in_one_sentence_too(job: Path) -> None:
    faulty = (
        "import sys\n"
        "from syncline.train import __main__ as program, config\n"
        "config.JobConfig.load = lambda *_: 1 / 0\n"
        "sys.exit(program.main(sys.argv[1:]))\n"
    )

    def said(**debug: str) -> tuple[int, str]:
        kept = {name: text for name, text in os.environ.items() if name != "SYNCLINE_DEBUG"}
        command = [sys.executable, "-c", faulty, str(job)]
        done = subprocess.run(command, env=kept | debug, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    sentence = (
        "error: A fault of ours (ZeroDivisionError: division by zero); "
        "SYNCLINE_DEBUG=1 shows where, please report.\n"
    )
    assert said() == (1, sentence)
    code, traced = said(SYNCLINE_DEBUG="1")
    assert code == 1 and traced.startswith("Traceback") and traced.endswith(sentence)
