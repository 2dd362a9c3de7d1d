"""What a job's model may be, and where it is cut."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from syncline.blocks import blocks_in
from syncline.train.folder import Vocabulary
from syncline.train.model import build_config, build_model, check_model
from syncline_proto.errors import ConfigError, FileMissing
from syncline_testing.training import LLAMA, tiny_job

VOCABULARY = Vocabulary(vocab_size=257, eos_id=256)

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 64}


def check(config: dict[str, Any]) -> None:
    job = tiny_job(Path("nowhere"), steps=1, model={"config": config})
    here = job.data.model_copy(update={"path": None, "source": ["builtin"]})
    check_model(job.model_copy(update={"data": here}))


def build(config: dict[str, Any], **sections: Any) -> Any:
    job = tiny_job(Path("nowhere"), steps=1, model={"config": config}, **sections)
    return build_model(job, VOCABULARY)


def test_the_vocabulary_follows_the_tokenizer_where_the_job_is_silent() -> None:
    job = tiny_job(Path("nowhere"), steps=1)
    config = build_config(job.model, VOCABULARY)
    assert (config.vocab_size, config.eos_token_id) == VOCABULARY
    larger = tiny_job(Path("nowhere"), steps=1, model={"config": {**LLAMA, "vocab_size": 320}})
    assert build_config(larger.model, VOCABULARY).vocab_size == 320


def test_the_same_seed_gives_the_same_parameters_whatever_came_before() -> None:
    one = build(LLAMA)
    torch.rand(3)
    two, other = build(LLAMA), build(LLAMA, train={"seed": 1})
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


@pytest.mark.parametrize(("config", "count"), [(LLAMA, 2), (GPT2, 3)])
def test_the_blocks_are_found(config: dict[str, Any], count: int) -> None:
    found = blocks_in(build(config))
    assert found is not None and len(found[1]) == count


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "nonesuch"}, "there is no causal language model 'nonesuch'."),
        ({**LLAMA, "model_type": "lama"}, "'lama'; did you mean llama?"),
        ({**LLAMA, "torch_dtype": "garbage"}, "model.config.torch_dtype: there is no dtype "),
        ({**LLAMA, "dtype": "bfloat"}, "'bfloat'; did you mean bfloat16?"),
        ({**LLAMA, "rope_theta": "x"}, "model.config.rope_theta must be a number above 0"),
        ({**LLAMA, "rope_theta": float("inf")}, "rope_theta must be a number above 0, not inf"),
        ({**LLAMA, "rope_theta": float("nan")}, "rope_theta must be a number above 0, not nan"),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": "x"}},
            "model.config.rope_scaling.rope_theta must be a number above 0, not 'x'",
        ),
        ({**LLAMA, "hidden_sizee": 3}, "model.config.hidden_sizee is not a setting of llama"),
        ({**LLAMA, "hidden_size": "x"}, "hidden_size"),
        (
            {**LLAMA, "num_attention_heads": 5},
            "attention heads (5); set num_attention_heads to a divisor of it.",
        ),
        ({**LLAMA, "vocab_size": 100}, "the model has 100 token ids and the tokenizer 257"),
        ({**LLAMA, "max_position_embeddings": 16}, "data.sequence_length 32 is more than the 16"),
        ({"model_type": "t5"}, "there is no causal language model 't5'"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers must be at least 1, not 0"),
        ({**GPT2, "n_layer": -1}, "n_layer must be at least 1, not -1"),
        ({**LLAMA, "hidden_act": "sillu"}, "there is no activation 'sillu'; did you mean silu?"),
        ({**LLAMA, "hidden_act": "nosuch"}, "there are gelu, "),
        (
            {**LLAMA, "num_key_value_heads": 3},
            "num_key_value_heads (3); set the latter to a divisor of it.",
        ),
        ({**GPT2, "n_head": 3}, "model: "),
        ({"model_type": "reformer"}, "make sure that `is_decoder=True`"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(config: dict[str, Any], expected: str) -> None:
    """Before anything is prepared, and by everybody who builds it."""
    for refuse in (check, build):
        with pytest.raises(ConfigError) as raised:
            refuse(config)
        assert expected in raised.value.message
        assert "\n" not in raised.value.message and "validat" not in raised.value.message


def test_a_model_too_large_for_this_machine_is_checked_all_the_same() -> None:
    check({**LLAMA, "hidden_size": 1 << 16, "intermediate_size": 1 << 18, "num_hidden_layers": 8})
    check(GPT2)


def test_no_limit_of_positions_is_no_small_one() -> None:
    check({"model_type": "xlnet", "d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 64})


@pytest.mark.skipif(find_spec("timm") is not None, reason="the library is there")
def test_a_library_that_a_model_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^model: .* requires the timm library"):
        check({"model_type": "gemma3n"})


@pytest.mark.parametrize(("asked", "has"), [("auto", "sdpa"), ("eager", "eager")])
def test_the_log_says_which_attention_the_model_has(asked: str, has: str) -> None:
    job = tiny_job(Path("nowhere"), steps=1, model={"config": LLAMA, "attention": asked})
    with capture_logs() as logged:
        model = build_model(job, VOCABULARY)
    (built,) = (line for line in logged if line["event"] == "model.built")
    assert built["attention"] == model.config._attn_implementation == has


def test_a_folder_without_a_config_is_missing(tmp_path: Path) -> None:
    job = tiny_job(Path("nowhere"), steps=1, model={"config": None, "path": tmp_path})
    with pytest.raises(FileMissing, match=r"holds no config\.json"):
        build_model(job, VOCABULARY)
