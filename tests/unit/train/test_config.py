"""A job is read whole or refused in one sentence."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from syncline.train.config import JobConfig
from syncline_proto.errors import ConfigError, FileMissing, SynclineError
from syncline_proto.settings import RunSettings
from syncline_testing.replicas import Trial

SMALLEST = """
[run]
name = "one"
token_budget = 1000
[model]
config = { model_type = "llama" }
[data]
source = ["builtin"]
"""


def write(folder: Path, text: str = SMALLEST) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str = SMALLEST, *overrides: str) -> SynclineError:
    with pytest.raises(ConfigError) as raised:
        JobConfig.load(write(folder, text), list(overrides))
    assert "\n" not in raised.value.message
    return raised.value


def test_the_smallest_job_has_defaults_for_all_else(tmp_path: Path) -> None:
    job = JobConfig.load(write(tmp_path))
    assert job.settings.strategy == "edit"
    assert job.settings.token_budget == 1000
    assert job.train.clip == 1.0


def test_a_job_says_where_anchors_lie_or_leaves_that_to_the_environment(tmp_path: Path) -> None:
    assert JobConfig.load(write(tmp_path)).train.anchor_device is None
    job = JobConfig.load(write(tmp_path), ["train.anchor_device=model"])
    assert job.train.anchor_device == "model"
    error = refused(tmp_path, SMALLEST, "train.anchor_device=gpu")
    assert "train.anchor_device" in error.message and "'cpu' or 'model'" in error.message


def test_the_presets_of_a_strategy_hold_in_a_job(tmp_path: Path) -> None:
    job = JobConfig.load(write(tmp_path), ["run.strategy=local-sgd", "run.outer.clip=2"])
    assert (job.settings.outer.lr, job.settings.outer.momentum) == (1.0, 0.0)
    assert job.settings.outer.clip == 2.0
    assert not job.settings.penalty.enabled


def test_settings_that_nobody_wrote_are_not_given(tmp_path: Path) -> None:
    """Training alone tells of those that mean nothing there, and of no others."""
    job = JobConfig.load(write(tmp_path), ["run.sync_every=32"])
    assert job.settings.model_fields_set == {"token_budget", "sync_every"}
    assert job.settings == RunSettings(token_budget=1000, sync_every=32)
    with capture_logs() as logs, Trial(None, "r", 1, settings=job.settings).replica:
        pass
    assert logs[0]["so"] == "settings that mean nothing here: sync_every"


def test_an_export_may_not_replace_the_model_that_training_begins_with(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (tmp_path / "again").symlink_to(base)
    text = SMALLEST.replace('config = { model_type = "llama" }', f'path = "{base}"')
    for folder in (base, tmp_path / "again", base / ".." / "base"):
        error = refused(tmp_path, text, f"export.folder={folder}")
        assert "export.folder is model.path" in error.message
    assert JobConfig.load(write(tmp_path, text), [f"export.folder={base / 'out'}"])


def test_two_services_of_one_launch_are_not_given_one_port(tmp_path: Path) -> None:
    text = SMALLEST + "[up]\ncontrol_port = 8500\n"
    error = refused(tmp_path, text, "up.sync_port=8500")
    assert "up: control_port and sync_port are both 8500, and each" in error.message
    assert JobConfig.load(write(tmp_path, text), ["up.sync_port=8501"])
    assert JobConfig.load(write(tmp_path, text), ["up.control_port=0"])


def test_a_job_survives_the_way_through_json(tmp_path: Path) -> None:
    job = JobConfig.load(write(tmp_path), ["run.outer.lr=0.5", "data.source=['a b', 'c']"])
    assert JobConfig.from_job(job.to_job()) == job


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("train.micro_batch=3", "train", "micro_batch", 3),
        ("optimizer.lr = 1e-2", "optimizer", "lr", 0.01),
        ("optimizer.betas=[0.8, 0.9]", "optimizer", "betas", (0.8, 0.9)),
        ("train.compile=true", "train", "compile", True),
        ("train.clip=none", "train", "clip", None),
        ("data.tokenizer=bpe:512", "data", "tokenizer", "bpe:512"),
        ("export.folder=a=b", "export", "folder", Path("a=b")),
    ],
)
def test_overrides_are_toml_or_text(
    tmp_path: Path, override: str, section: str, key: str, value: object
) -> None:
    job = JobConfig.load(write(tmp_path), [override])
    assert getattr(getattr(job, section), key) == value


def test_an_unknown_key_is_named_with_what_is_allowed(tmp_path: Path) -> None:
    error = refused(tmp_path, SMALLEST + "[train]\nmicro_bach = 2\n")
    assert error.message.startswith(f"{tmp_path / 'job.toml'}: train.micro_bach is not a setting")
    assert "did you mean train.micro_batch?" in error.message
    assert "accumulate" in error.message
    assert error.exit_code == 10


def test_a_fault_in_the_file_is_the_files_whatever_is_set_beside_it(tmp_path: Path) -> None:
    error = refused(tmp_path, SMALLEST + "[train]\nmicro_batch = 0\n", "train.accumulate=2")
    assert error.message == f"{tmp_path / 'job.toml'}: train.micro_batch must be at least 1, not 0."


def test_an_unknown_key_of_the_run_is_found_as_well(tmp_path: Path) -> None:
    assert "run.outer.momentun is not a setting" in refused(
        tmp_path, SMALLEST, "run.outer.momentun=0.5"
    ).message  # fmt: skip
    assert "sync_evry is not a setting" in refused(tmp_path, SMALLEST, "run.sync_evry=5").message
    assert "trian is not a setting" in refused(tmp_path, SMALLEST, "trian.clip=5").message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.micro_batch=many", "train.micro_batch must be a valid integer, not 'many'"),
        ("train.micro_batch=0", "train.micro_batch must be at least 1, not 0"),
        ("train.precision=fp8", "'fp32' or 'bf16', not 'fp8'"),
        ("run.name=No Name", "--set: run.name must be 1 to 63 lower-case letters, digits and"),
        ("run.nam=x", "--set: run.nam is not a setting; did you mean run.name?"),
        ("run.tokn=3", "--set: run.tokn is not a setting; did you mean run.token_budget?"),
        ("data.source=builtin", """must be a valid list, such as 'data.source=["builtin"]', not"""),
        ("optimizer.betas=[0.9, 1.0]", "optimizer: betas: each must be at least 0 and below 1"),
        ("run.timeouts.lease=500", "run.timeouts: the lease (500.0 s)"),
        ("sync_every=3", "--set: sync_every is not a setting; did you mean run.sync_every?"),
        ("sync_evry=3", "--set: sync_evry is not a setting; did you mean run.sync_every?"),
        ("lr=3", "--set: lr is not a setting; did you mean run.outer.lr or optimizer.lr?"),
        ("outer.lr=3", "--set: outer is not a setting; did you mean run.outer?"),
        ("optimizr.lr=3", "--set: optimizr is not a setting; did you mean optimizer?"),
        ("train.lr=3", "train.lr is not a setting; did you mean run.outer.lr or optimizer.lr?"),
        ("train.reshard_after_forward=1", "write true, false, or a number of ranks, 2 or more"),
        ("train=5", "train must be a group of keys, not 5"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    tmp_path: Path, override: str, expected: str
) -> None:
    assert expected in refused(tmp_path, SMALLEST, override).message


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["run.token_budget=none"], 'optimizer.schedule "cosine" needs an end'),
        (["optimizer.warmup_tokens=1000"], "must be below run.token_budget (1000)"),
        (["optimizer.name=wsam", "run.warmup_steps=4"], "run.warmup_steps averages one"),
        (["data.path=here"], "data: give one of path (a prepared folder), url, source"),
        (["model.path=here"], "model: give one of config, path and factory"),
        (["model.config={}"], "config needs a model_type"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(
    tmp_path: Path, overrides: list[str], expected: str
) -> None:
    assert expected in refused(tmp_path, SMALLEST, *overrides).message


@pytest.mark.parametrize(
    ("overrides", "blamed", "expected"),
    [
        (["run.quorum=5", "train.clip=none"], "run.quorum=5", "run: max_replicas (3) must be"),
        (["optimizer.betas=[2, 2]"], "optimizer.betas=[2, 2]", "optimizer: betas: each must be"),
        (["model.factory=a:b"], "model.factory=a:b", "model: give one of config"),
        (["model.config.hidden_size=0"], "model.config.hidden_size=0", "model.config: hidden_size"),
        (["run.token_budget=none"], "run.token_budget=none", 'optimizer.schedule "cosine" needs'),
    ],
)
def test_of_a_contradiction_the_override_is_named_that_brought_it(
    tmp_path: Path, overrides: list[str], blamed: str, expected: str
) -> None:
    text = SMALLEST.replace("[run]", "[run]\nmax_replicas = 3")
    assert refused(tmp_path, text, *overrides).message.startswith(f"--set {blamed}: {expected}")


def test_a_contradiction_in_the_file_is_the_files_whatever_is_set_beside_it(tmp_path: Path) -> None:
    text = SMALLEST.replace("[run]", "[run]\nmax_replicas = 3\nquorum = 5")
    said = refused(tmp_path, text, "train.clip=none").message
    assert said.startswith(f"{tmp_path / 'job.toml'}: run: max_replicas (3) must be at least")


def test_a_missing_section_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, "[run]\nname = 'one'\n").message.endswith("model is missing.")


def test_what_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "line 2" in refused(tmp_path, "[run]\nname = \n").message


@pytest.mark.parametrize("override", ["train", "=3", "train..clip=3", "run.name.first=3"])
def test_an_override_must_name_a_key(tmp_path: Path, override: str) -> None:
    assert f"--set {override}" in refused(tmp_path, SMALLEST, override).message


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match="No such file or directory") as raised:
        JobConfig.load(tmp_path / "no.toml")
    assert raised.value.exit_code == 12


def test_every_preset_is_a_job() -> None:
    presets = list(Path(str(files("syncline.train").joinpath("presets"))).glob("*.toml"))
    assert presets
    for path in presets:
        job = JobConfig.load(path)
        assert job.run.token_budget and job.run.expected_replicas == job.up.replicas, path
