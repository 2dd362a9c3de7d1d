"""The examples of the documents, as programs: two replicas of one run, and each alone."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from syncline_testing.cluster import Cluster
from syncline_testing.pages import ROOT
from syncline_testing.waiting import wait_until
from syncline_testing.warm import warm, warm_ranks

EXAMPLES = {
    "loop": "loop",
    "accelerate_loop": "accelerate",
    "hf_trainer": "hf-trainer",
    "lightning_trainer": "lightning",
    "lora": "lora",
}
"""The run of each, which is also where it saves the model."""
FOLDER = ROOT / "docs" / "examples"
BUDGET = 24_576
WAIT_S = 100.0
AT = (
    "import os, runpy, sys; os.chdir(sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
)


def play(folder: Path, example: str, names: list[str], control: str) -> None:
    """Run the example under each of the names at once, in the folder, to a good end."""
    arguments = ("-c", AT, str(folder), str(FOLDER / f"{example}.py"))
    with ExitStack() as started:
        programs = {
            name: started.enter_context(
                warm(
                    *arguments,
                    log=folder / f"{name}.log",
                    SYNCLINE_CONTROL=control,
                    SYNCLINE_REPLICA=name,
                )
            )
            for name in names
        }
        for name, program in programs.items():
            assert program.wait(WAIT_S) == 0, (folder / f"{name}.log").read_text()


def saved(folder: Path, run: str, name: str) -> dict[str, Tensor]:
    (file,) = (folder / f"{run}-{name}").glob("*.safetensors")
    return load_file(file)


def test_ranks_that_accelerate_feeds_are_one_replica(cluster: Cluster, tmp_path: Path) -> None:
    """Two of them, whose batches it has dealt and whose gradients DDP averages, beside one."""
    text = (FOLDER / "accelerate_loop.py").read_text()
    (tmp_path / "ranks.py").write_text(text.replace('run="accelerate"', 'run="ranks"'))
    arguments, control = ("-c", AT, str(tmp_path), "ranks.py"), cluster.control_url
    logs = [tmp_path / f"{name}.log" for name in ("pair-0", "pair-1", "single")]
    with (
        warm_ranks(
            *arguments, logs=logs[:2], SYNCLINE_CONTROL=control, SYNCLINE_REPLICA="pair"
        ) as pair,
        warm(
            *arguments, log=logs[2], SYNCLINE_CONTROL=control, SYNCLINE_REPLICA="single"
        ) as single,
    ):
        for program, log in zip([*pair, single], logs, strict=True):
            assert program.wait(WAIT_S) == 0, log.read_text()
    whole, alone = (saved(tmp_path, "accelerate", name) for name in ("pair", "single"))
    for name, value in alone.items():
        assert torch.equal(value, whole[name]), name
    by = {one["replica"]: one["progress"] for one in cluster.get("/runs/ranks/replicas")}
    assert by["pair"]["tokens"] == 2 * 256 * by["pair"]["inner_step"], "each rank counts its own"


def test_every_example_is_played() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXAMPLES)
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 80, "short enough to be read"


@pytest.mark.parametrize("example", EXAMPLES)
def test_two_replicas_end_with_the_same_parameters(
    cluster: Cluster, tmp_path: Path, example: str
) -> None:
    run, names = EXAMPLES[example], ["left", "right"]
    play(tmp_path, example, names, cluster.control_url)
    seen = cluster.get(f"/runs/{run}")
    assert seen["state"] == "finished" and seen["replicas_alive"] == 0

    def is_told() -> bool:
        return cluster.get(f"/runs/{run}")["committed_tokens"] == BUDGET

    wait_until(is_told, 20, "the last round is told")
    left, right = (saved(tmp_path, run, name) for name in names)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
    for one in cluster.get(f"/runs/{run}/replicas"):
        assert one["progress"]["tokens"] == BUDGET // 2, "both did their part"
    for name in names:
        assert "Traceback" not in (tmp_path / f"{name}.log").read_text()


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_trains_alone(tmp_path: Path, example: str) -> None:
    play(tmp_path, example, ["alone"], control="")
    assert f"alone: {BUDGET} tokens" in (tmp_path / "alone.log").read_text()
    assert saved(tmp_path, EXAMPLES[example], "alone")
