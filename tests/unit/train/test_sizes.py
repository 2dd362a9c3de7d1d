"""An inner step is refused that is too large for the budget or the data, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline.cli.app import run
from syncline.data.errors import DataError
from syncline.data.shards import TokenShards
from syncline.train.config import JobConfig
from syncline.train.loop import Trainer
from syncline.train.ranks import RankGroup
from syncline.train.sizes import check_budget, check_data, check_sequences
from syncline_proto.errors import ConfigError
from syncline_testing.training import SEQUENCE, STEP_TOKENS, Recorder, tiny_data, tiny_job, to_toml


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("data") / "tokens")


def whole(data: Path) -> int:
    """As many sequences as there are."""
    return TokenShards.open(data).num_sequences(SEQUENCE)


def job_of(data: Path, micro_batch: int) -> JobConfig:
    return tiny_job(data, steps=1_000_000, train={"micro_batch": micro_batch})


def test_the_budget_holds_one_inner_step_of_everybody() -> None:
    job = tiny_job(Path("nowhere"), steps=6, train={"accumulate": 3})
    for ranks, replicas in ((1, 1), (2, 1), (1, 2)):
        check_budget(job, ranks=ranks, replicas=replicas)
    with pytest.raises(ConfigError) as raised:
        check_budget(job, ranks=2, replicas=2)
    said = raised.value.message
    assert f"run.token_budget is {6 * STEP_TOKENS} tokens and one inner step is" in said
    assert "train.micro_batch 4 x train.accumulate 3 x 2 ranks x data.sequence_length 32" in said
    endless = {"run": {"token_budget": None}, "optimizer": {"schedule": "constant"}}
    check_budget(tiny_job(Path("nowhere"), steps=1, **endless), ranks=99, replicas=99)


def test_the_training_set_holds_one_inner_step_of_a_replica(data: Path) -> None:
    there = whole(data)
    check_sequences(job_of(data, there), data, ranks=1)
    check_data(job_of(data, there // 2), ranks=2)
    for micro_batch, ranks in ((there + 1, 1), (there // 2 + 1, 2)):
        for refuse in (
            lambda job, ranks: check_sequences(job, data, ranks=ranks),
            lambda job, ranks: check_data(job, ranks=ranks),
        ):
            with pytest.raises(ConfigError, match=f"has {there} of {SEQUENCE} tokens; lower"):
                refuse(job_of(data, micro_batch), ranks)


def test_the_trainer_refuses_both(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNCLINE_CONTROL", raising=False)
    for job, why in (
        (job_of(data, whole(data) + 1), "training set"),
        (tiny_job(data, steps=1, train={"accumulate": 2}), "token_budget"),
    ):
        with pytest.raises(ConfigError, match=why):
            Trainer(job, RankGroup(), Recorder())


def test_up_refuses_with_nothing_started(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(to_toml(tiny_job(data, steps=1_000_000)))
    up = ["up", str(job), "--out", str(tmp_path)]
    missing = tiny_job(data, steps=1_000)
    section = missing.data.model_copy(update={"path": None, "source": ["nowhere/*.txt"]})
    other = tmp_path / "other.toml"
    other.write_text(to_toml(missing.model_copy(update={"data": section})))
    assert run([*up, "--set", f"train.micro_batch={whole(data) + 1}"]) == ConfigError.exit_code
    assert run([*up, "--set", "run.token_budget=100"]) == ConfigError.exit_code
    up[1] = str(other)
    assert run(up) == DataError.exit_code
    there = ("--set", f'data.source=["{job}"]')
    for tokenizer in ("bpe:3", "bpe:many"):
        wrong = ("--set", f"data.tokenizer={tokenizer}")
        assert run([*up, *there, *wrong]) == DataError.exit_code
    said = capsys.readouterr().err
    assert "training set" in said and "run.token_budget" in said
    assert "no file matches nowhere/*.txt" in said
    assert "at least 257 ids, got 3" in said and "bpe:many is no vocabulary size" in said
    assert "Starting" not in said and not list(tmp_path.rglob("*.log"))
