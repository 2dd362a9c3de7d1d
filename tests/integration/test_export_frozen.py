"""What belongs to a model and is never trained is in its export: alone, and from a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from syncline.train.export import NONE_LACKING, export_model, export_run, full_state
from syncline.train.exported import ORIGIN, Origin
from syncline.train.loop import Trainer
from syncline.train.ranks import RankGroup
from syncline_proto.errors import FileMissing, LayoutMismatch
from syncline_testing.cluster import Cluster
from syncline_testing.training import LLAMA, STEP_TOKENS, Recorder, tiny_job

pytestmark = pytest.mark.usefixtures("alone")

GLM: dict[str, Any] = {
    **{**LLAMA, "model_type": "glm4_moe", "num_key_value_heads": 2, "n_routed_experts": 4},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1},
}
"""Whose router has a bias that is a buffer."""

AFMOE: dict[str, Any] = {
    **{**LLAMA, "model_type": "afmoe", "num_key_value_heads": 2, "num_experts": 4},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1},
}
"""Where it is a parameter that requires no gradient, unless it is read from a folder."""

BIAS = {
    "glm4_moe": "model.layers.1.mlp.gate.e_score_correction_bias",
    "afmoe": "model.layers.1.mlp.expert_bias",
}


def weights(data: Path, out: Path, config: dict[str, Any], bias: float) -> Path:
    """A folder of such a model, with a bias that its configuration alone does not give."""
    job = tiny_job(data, steps=1, model={"config": config})
    state = full_state(Trainer(job, RankGroup(), Recorder()).model)
    state[BIAS[config["model_type"]]].fill_(bias)
    return export_model(state, job, out, frozen_sha256=NONE_LACKING, origin=Origin(run="made"))


def loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)


def bias_in(folder: Path) -> list[float]:
    model = loaded(folder)
    return model.state_dict()[BIAS[model.config.model_type]].tolist()


def test_who_trains_alone_exports_its_buffers(data: Path, tmp_path: Path) -> None:
    begun = weights(data, tmp_path / "begun", GLM, 0.25)
    job = tiny_job(
        data,
        steps=2,
        model={"config": None, "path": begun},
        export={"folder": tmp_path / "out"},
    )
    trainer = Trainer(job, RankGroup(), Recorder())
    trainer.run()
    exported = loaded(tmp_path / "out")
    assert bias_in(tmp_path / "out") == [0.25] * 4
    for name, parameter in exported.named_parameters():
        assert torch.equal(parameter, trainer.model.get_parameter(name)), name


@pytest.mark.long
def test_a_run_is_exported_with_the_buffers_that_it_began_with(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(tmp_path) as cluster:
        monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
        begun = weights(data, tmp_path / "begun", GLM, 0.25)
        other = weights(data, tmp_path / "other", AFMOE, 0.25)
        for run, model, bias in (
            ("folder", {"config": None, "path": begun}, 0.25),
            ("config", {"config": GLM}, 0.0),
            ("other-folder", {"config": None, "path": other}, 0.25),
            ("other-config", {"config": AFMOE}, 0.0),
        ):
            settings = {"name": run, "sync_every": 2, "token_budget": 4 * STEP_TOKENS}
            job = tiny_job(data, steps=4, run=settings, model=model)
            assert Trainer(job, RankGroup(), Recorder()).run().reason == "budget"
            out = export_run(run, cluster.control_url, tmp_path / run).folder
            assert bias_in(out) == [bias] * 4

        weights(data, begun, GLM, 0.5)
        signed = (other / ORIGIN).read_text()
        with pytest.raises(LayoutMismatch, match="other frozen tensors or buffers than the run"):
            export_run("folder", cluster.control_url, other, overwrite=True)
        assert bias_in(other) == [0.25] * 4 and (other / ORIGIN).read_text() == signed
        shutil.rmtree(begun)
        with pytest.raises(FileMissing, match=r"begun holds no config\.json"):
            export_run("folder", cluster.control_url, tmp_path / "gone")
