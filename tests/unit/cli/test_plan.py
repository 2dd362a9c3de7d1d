"""A job's file and a person's flags become one launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline.cli.up import up
from syncline.launch.commands import (
    Place,
    SyncPorts,
    devices,
    replica_names,
    sync_service,
    trainer,
)
from syncline.launch.plan import locked, plan_demo, plan_up
from syncline.train.exported import ORIGIN, Origin, sign
from syncline_proto.errors import ConfigError, FileMissing, StoreError

JOB = """
[run]
name = "tiny"
token_budget = 10_000
[model]
config = { model_type = "llama" }
[data]
source = ["builtin"]
[up]
replicas = 3
ranks = 2
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def test_the_run_expects_the_replicas_that_are_started(job: str, tmp_path: Path) -> None:
    launch = plan_up(job, str(tmp_path), [], None, 3, None)
    assert (launch.replicas, launch.ranks, launch.restarts) == (3, 2, 3)
    assert launch.job.settings.replicas == 3
    more = plan_up(job, str(tmp_path), ["run.expected_replicas=7"], None, 3, None)
    assert (more.replicas, more.job.settings.replicas) == (3, 7)
    flag = plan_up(job, str(tmp_path), ["run.expected_replicas=7"], 5, 3, None)
    assert (flag.replicas, flag.job.settings.replicas) == (5, 5)


def test_replicas_are_given_what_made_the_plan(job: str, tmp_path: Path) -> None:
    launch = plan_up(job, str(tmp_path), ["run.sync_every=5"], 2, 0, None)
    again = launch.job.load(launch.job_file, list(launch.overrides))
    assert again == launch.job
    assert again.run.sync_every == 5


def test_a_model_of_ones_own_is_asked_for_no_text_once_it_is_trained(
    job: str, tmp_path: Path
) -> None:
    own = ["model.config=null", "model.factory=mine:made"]
    with pytest.raises(ConfigError, match="^--prompt: only a model of transformers"):
        up(job, out=str(tmp_path), overrides=own, restarts=0, prompt="def ")


def test_a_run_comes_back_to_its_folder(job: str, tmp_path: Path) -> None:
    first, second = (plan_up(job, str(tmp_path / "out"), [], None, 3, None) for _ in range(2))
    assert first.folder == second.folder == tmp_path / "out" / "tiny"
    assert first.job.checkpoint.folder == first.folder / "checkpoints"


def test_one_launch_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "a"):
        with pytest.raises(ConfigError, match="--out"), locked(tmp_path / "a"):
            pass
        with locked(tmp_path / "b"):
            pass
    with locked(tmp_path / "a"):
        pass


def test_a_launch_that_came_to_nothing_leaves_no_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "runs" / "a"):
        pass
    assert not list(tmp_path.iterdir())
    (tmp_path / "own").mkdir()
    with locked(tmp_path / "own"), locked(tmp_path / "runs" / "a"):
        (tmp_path / "runs" / "a" / "job.toml").touch()
    assert (tmp_path / "runs" / "a" / "job.toml").exists() and (tmp_path / "own").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    too_long = plan_demo(str(tmp_path / ("x" * 300)), [], None).folder
    for folder in (tmp_path / "file" / "below", too_long):
        with pytest.raises(StoreError, match="--out"), locked(folder):
            pass


def test_only_the_demo_starts_anew_each_time(job: str, tmp_path: Path) -> None:
    assert plan_up(job, str(tmp_path), [], None, 3, None).goes_on
    assert not plan_demo(str(tmp_path), [], None).goes_on


def test_the_demo_is_edit_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    launch = plan_demo(str(tmp_path), [], None)
    run = launch.job.settings
    assert run.strategy == "edit" and run.penalty.enabled
    assert run.warmup_steps > 0 and run.outer.momentum > 0
    assert launch.replicas == run.replicas == 2


def test_a_place_whose_replica_was_kicked_gets_another_name() -> None:
    assert replica_names(2, set()) == ["replica-0", "replica-1"]
    assert replica_names(2, {"replica-1", "gpu-box"}) == ["replica-0", "replica-2"]
    assert replica_names(3, {"replica-0", "replica-2"}) == ["replica-1", "replica-3", "replica-4"]


def test_wrong_jobs_are_told_before_anything_starts(job: str, tmp_path: Path) -> None:
    with pytest.raises(FileMissing):
        plan_up(str(tmp_path / "none.toml"), None, [], None, 3, None)
    with pytest.raises(ConfigError, match="sync_evry"):
        plan_up(job, None, ["run.sync_evry=5"], None, 3, None)


def test_gpus_are_dealt_out_without_giving_one_twice_to_a_replica() -> None:
    def dealt(replicas: int, ranks: int, gpus: list[str]) -> list[dict[str, str]]:
        return [devices(place, ranks, gpus) for place in range(replicas)]

    assert dealt(2, 1, []) == [{}, {}]
    assert dealt(2, 2, ["0", "1", "2", "3"]) == [
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": "2,3"},
    ]
    assert dealt(3, 1, ["a", "b"]) == [{"CUDA_VISIBLE_DEVICES": name} for name in "aba"]
    assert dealt(1, 2, ["0"]) == [{}]
    for given in dealt(5, 3, ["0", "1", "2", "3"]):
        names = given["CUDA_VISIBLE_DEVICES"].split(",")
        assert len(set(names)) == 3


def test_the_trainer_is_started_once_for_each_rank() -> None:
    alone = trainer("job.toml", replica="replica-0", overrides=["a.b=1", "c.d=x y"])
    assert alone[1:3] == ["-m", "syncline.train"]
    assert alone[-4:] == ["--set", "a.b=1", "--set", "c.d=x y"]
    shared = trainer("job.toml", ranks=2, resume=True)
    assert "ranks.py" in shared[2] and shared[3] == "2"
    assert shared[-1] == "--resume"


def test_a_run_may_not_end_where_its_model_comes_from(tmp_path: Path) -> None:
    """Such as: a second training, in the same folder, of what the first one made."""
    path = tmp_path / "job.toml"
    made = tmp_path / "tiny" / "export"
    path.write_text(JOB.replace('config = { model_type = "llama" }', f'path = "{made}"'))
    with pytest.raises(ConfigError, match=r"--set run\.name=NAME"):
        plan_up(str(path), str(tmp_path), [], None, 0, None)
    assert plan_up(str(path), str(tmp_path), ["run.name=second"], None, 0, None).export != made
    elsewhere = plan_up(str(path), str(tmp_path), [f"export.folder={tmp_path}/m"], None, 0, None)
    assert elsewhere.export == tmp_path / "m"


def test_only_an_export_of_the_same_run_is_replaced(job: str, tmp_path: Path) -> None:
    made = tmp_path / "model"
    there = [f"export.folder={made}"]

    def refused() -> str:
        with pytest.raises(ConfigError, match="--set export.folder=DIR, or remove it") as raised:
            plan_up(job, str(tmp_path), there, None, 0, None)
        return raised.value.message

    sign(made, Origin(run="other"))  # whose export never came
    assert plan_up(job, str(tmp_path), there, None, 0, None).export == made
    (made / "config.json").write_text("{}")
    assert f"{made} holds an export of the run other already" in refused()
    sign(made, Origin(run="tiny", alone=True))
    assert f"{made} holds a model trained alone as tiny already" in refused()
    for unsigned in ("[1]", "no JSON", '{"run": 1}'):
        (made / ORIGIN).write_text(unsigned)
        assert f"{made} holds a model already" in refused()
    sign(made, Origin(run="tiny"))
    assert plan_up(job, str(tmp_path), there, None, 0, None).export == made


def test_fewer_replicas_than_a_round_needs_are_refused(job: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no round would ever close"):
        plan_up(job, str(tmp_path), ["run.min_replicas=3"], 2, 0, None)


@pytest.mark.parametrize(
    ("overrides", "replicas"),
    [(["run.max_replicas=2"], 3), (["run.max_replicas=2", "up.replicas=3"], None)],
)
def test_more_replicas_than_have_a_place_are_refused(
    job: str, tmp_path: Path, overrides: list[str], replicas: int | None
) -> None:
    with pytest.raises(ConfigError, match="run.max_replicas is 2 and 3 are started, so not"):
        plan_up(job, str(tmp_path), overrides, replicas, 0, None)


def test_sync_services_that_share_have_places_of_their_own(job: str, tmp_path: Path) -> None:
    assert plan_up(job, str(tmp_path), [], None, 3, None).shards == 1
    launch = plan_up(job, str(tmp_path), ["up.shards=2"], None, 3, None)
    syncs = [SyncPorts(port=i, health_port=i + 1, metrics_port=i + 2) for i in (1, 4)]
    place = Place(folder=launch.folder, control_port=9, syncs=tuple(syncs[: launch.shards]))
    both = [sync_service(place, index) for index in range(2)]
    assert [one.name for one in both] == ["sync-0", "sync-1"]
    given = [dict(zip(one.argv[3::2], one.argv[4::2], strict=True)) for one in both]
    assert [one["--shards"] for one in given] == ["2", "2"]
    for flag in ("--index", "--port", "--health-port", "--metrics-port", "--data", "--name"):
        assert given[0][flag] != given[1][flag]
    alone = Place(folder=launch.folder, control_port=9, syncs=tuple(syncs[:1]))
    assert str(launch.folder / "store") in sync_service(alone).argv
