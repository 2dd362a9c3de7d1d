"""What a token costs and a device can do, against figures that others have written down."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from syncline.train.flops import flops_per_token, peak_flops, tokens_at_peak
from syncline.train.ranks import RankGroup
from syncline_testing.training import SEQUENCE, tiny_job


def built(model_type: str, **config: object) -> PreTrainedModel:
    """On torch's meta device: sizes, and no memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config))


def test_a_token_of_gpt_2_costs_what_is_counted_by_hand() -> None:
    """12 L d^2 in the blocks, with their biases and norms, and the head."""
    layers, width, vocabulary, length = 12, 768, 50257, 1024
    blocks = layers * (12 * width**2 + 13 * width) + 2 * width
    expected = 6 * (blocks + vocabulary * width) + 12 * layers * width * length
    assert flops_per_token(built("gpt2"), length) == expected


@pytest.mark.parametrize("tied", [True, False])
def test_a_table_that_is_only_looked_up_in_costs_nothing(tied: bool) -> None:
    how = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    how |= {"intermediate_size": 128, "vocab_size": 1000, "tie_word_embeddings": tied}
    block = 3 * 64 * 32 + 32 * 64 + 3 * 64 * 128 + 2 * 64
    multiplied = 2 * block + 64 + 1000 * 64
    model = built("llama", num_key_value_heads=4, **how)
    assert flops_per_token(model, 16) == 6 * multiplied + 12 * 2 * 4 * 8 * 16


def test_what_is_not_known_is_not_told() -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"intermediate_size": 32, "num_key_value_heads": 2, "vocab_size": 64}
    assert flops_per_token(built("mixtral", **small), 16) is None
    windowed = built("mistral", sliding_window=8, **small)
    assert flops_per_token(windowed, 16) is None
    assert flops_per_token(windowed, 8) is not None
    frozen = built("llama", **small)
    frozen.get_input_embeddings().requires_grad_(False)
    assert flops_per_token(frozen, 16) is None
    job = tiny_job(Path("nowhere"), steps=1)
    assert tokens_at_peak(built("llama", **small), job, RankGroup(count=2)) is None


def test_a_replica_at_its_peak_does_what_all_its_devices_do() -> None:
    model, ranks = built("gpt2"), RankGroup(count=4)
    flops = flops_per_token(model, SEQUENCE)
    assert flops is not None
    peak = {"peak_flops": 10 * flops}
    assert tokens_at_peak(model, tiny_job(Path("nowhere"), steps=1, log=peak), ranks) == 40
    twice = tiny_job(Path("nowhere"), steps=1, log=peak, optimizer={"name": "wsam"})
    assert tokens_at_peak(model, twice, ranks) == 20, "two passes over each token"


@pytest.mark.parametrize(
    ("device", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("Tesla T4", None),
    ],
)
def test_a_device_is_known_by_its_name(device: str, tera: float | None) -> None:
    assert peak_flops(device) == (None if tera is None else tera * 1e12)
