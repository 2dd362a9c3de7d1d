"""The trainer over two ranks with FSDP2, once under torchrun itself, against one process.

The same sequences, cut differently, must give the same losses; a checkpoint of two ranks goes on;
what rank 0 finds wrong with the data is everybody's one sentence.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from syncline.data.errors import DataError
from syncline.layout import persistent_buffers
from syncline.train.config import JobConfig
from syncline.train.export import full_state
from syncline.train.folder import Vocabulary
from syncline.train.loop import Trainer
from syncline.train.model import build_model
from syncline.train.ranks import RankGroup
from syncline_testing.processes import environment
from syncline_testing.training import LLAMA, Recorder, tiny_data, tiny_job, to_toml
from syncline_testing.warm import warm_ranks

STEPS, RESUMED_AT = 12, 8
VOCABULARY = Vocabulary(vocab_size=257, eos_id=256)

EXPERTS = {
    **LLAMA,
    **{"model_type": "deepseek_v3", "num_key_value_heads": 2},
    **{"q_lora_rank": 16, "kv_lora_rank": 16},
    **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}
"""One dense block and one of routed experts, whose routing bias is a buffer that is saved."""


def torchrun(folder: Path, job: JobConfig, *arguments: str) -> list[dict[str, Any]]:
    """Train on two ranks; what rank 0 told, line by line."""
    path = folder / "job.toml"
    path.write_text(to_toml(job))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "syncline.train", str(path), "--progress", "json", *arguments]
    done = subprocess.run(
        [sys.executable, *command],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def two_ranks(folder: Path, job: JobConfig, *arguments: str) -> list[dict[str, Any]]:
    """The same, without torchrun, whose processes each load PyTorch."""
    path = folder / "job.toml"
    path.write_text(to_toml(job))
    with warm_ranks("-m", "syncline.train", str(path), "--progress", "json", *arguments) as ranks:
        ends = [rank.communicate(timeout=100) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], ends
    (out, _), (nothing, _) = ends
    assert nothing == ""
    return [json.loads(line) for line in out.splitlines()]


def losses(told: list[dict[str, Any]]) -> list[float]:
    return [one["loss"] for one in told if one["event"] == "progress"]


def test_two_ranks_train_as_one_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SYNCLINE_CONTROL", raising=False)
    data = tiny_data(tmp_path / "tokens")
    # Untied, so that embeddings, blocks and head are each a group of their own.
    model = {"config": {**LLAMA, "tie_word_embeddings": False}}
    one = Recorder()
    alone = Trainer(tiny_job(data, steps=STEPS, model=model), RankGroup(), one)
    ending = alone.run()
    kept = {"folder": tmp_path / "kept", "every_steps": RESUMED_AT}
    two = tiny_job(
        data,
        steps=STEPS,
        model=model,
        train={"micro_batch": 2, "activation_checkpointing": True},
        evaluate={"sequences": 7, "every_steps": 5},
        checkpoint=kept,
        export={"folder": tmp_path / "out"},
    )
    told = torchrun(tmp_path, two)
    assert losses(told) == pytest.approx(one.losses, abs=1e-5)
    assert told[-1]["own_tokens"] == ending.own_tokens
    exported = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in full_state(alone.model).items():
        torch.testing.assert_close(exported[name], tensor, atol=1e-5, rtol=0)

    (tmp_path / "kept" / "tiny" / "alone" / f"step-{STEPS:010d}").rename(tmp_path / "aside")
    resumed = two_ranks(tmp_path, two, "--resume")
    assert losses(resumed) == losses(told)[RESUMED_AT:]


@pytest.mark.long
@pytest.mark.parametrize("name", ["muon", "agd", "wsam"])
def test_two_ranks_go_on_bit_for_bit_with_the_state_of_any_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """AdamW's is seen above."""
    monkeypatch.delenv("SYNCLINE_CONTROL", raising=False)
    job = tiny_job(
        tiny_data(tmp_path / "tokens"),
        steps=6,
        train={"micro_batch": 2},
        optimizer={"name": name},
        checkpoint={"folder": tmp_path / "kept", "every_steps": 4},
    )
    straight = losses(two_ranks(tmp_path, job))
    (tmp_path / "kept" / "tiny" / "alone" / "step-0000000006").rename(tmp_path / "aside")
    assert losses(two_ranks(tmp_path, job, "--resume")) == straight[4:]
    assert len(straight) == 6


def test_two_ranks_train_experts_with_a_saved_buffer_as_one_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SYNCLINE_CONTROL", raising=False)
    data, one = tiny_data(tmp_path / "tokens"), Recorder()
    begun = build_model(tiny_job(data, steps=1, model={"config": EXPERTS}), VOCABULARY)
    ((name, bias),) = persistent_buffers(begun).items()
    bias.copy_(torch.linspace(0.0, 1.0, len(bias)))  # so that it decides which experts are taken
    begun.save_pretrained(tmp_path / "begun")
    model = {"config": None, "path": tmp_path / "begun"}
    Trainer(tiny_job(data, steps=STEPS, model=model), RankGroup(), one).run()
    two = tiny_job(
        data,
        steps=STEPS,
        model=model,
        train={"micro_batch": 2},
        export={"folder": tmp_path / "out"},
    )
    assert losses(two_ranks(tmp_path, two)) == pytest.approx(one.losses, abs=1e-5)
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")[name], bias)


def test_data_that_cannot_be_prepared_is_one_sentence_on_all_ranks(tmp_path: Path) -> None:
    missing = {"source": [str(tmp_path / "missing.txt")], "cache": tmp_path, "sequence_length": 32}
    values = {**tiny_job(tmp_path, steps=2).to_job(), "data": missing}
    path = tmp_path / "job.toml"
    path.write_text(to_toml(JobConfig.checked(values, "job")))
    with warm_ranks("-m", "syncline.train", str(path), "--progress", "none") as ranks:
        errors = [rank.communicate(timeout=100)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [DataError.exit_code] * 2, errors
    said = [line for error in errors for line in error.splitlines() if "missing.txt" in line]
    assert said == [said[0]] * 2
    assert "fault" not in "".join(errors)
