"""Where only the services are installed, a command that trains names the extra that it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from syncline_testing.training import tiny_data, tiny_job, to_toml

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from {module} import {main}
sys.exit({main}(sys.argv[1:]))
"""
SENTENCE = "error: This needs torch, which is not installed here: pip install 'syncline[worker]'.\n"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    path = folder / "job.toml"
    path.write_text(to_toml(tiny_job(tiny_data(folder / "tokens"), steps=1)))
    return path


@pytest.mark.parametrize(
    ("module", "main", "words"),
    [
        ("syncline.train.__main__", "main", []),  # what `syncline train` starts
        ("syncline.cli.app", "run", ["runs", "create"]),
    ],
    ids=["train", "runs create"],
)
def test_what_is_not_installed_is_named_with_its_extra(
    module: str, main: str, words: list[str], job: Path
) -> None:
    program = WITHOUT_TORCH.format(module=module, main=main)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SYNCLINE_")}
    command = [sys.executable, "-c", program, *words, str(job)]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=60)
    assert done.returncode == 10
    assert done.stderr.endswith(SENTENCE)
