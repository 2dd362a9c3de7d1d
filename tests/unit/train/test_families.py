"""Families of causal language models: each is built from a job, cut, trained, merged, and goes on.

As small as they come, with the parts that make them special: experts, shared and tied weights,
recurrences, frozen tensors, buffers that are saved.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from syncline.anchors import Anchors
from syncline.blocks import blocks_in
from syncline.carrier import Direct
from syncline.hooks import Hooks
from syncline.layout import frozen_tensors, outline
from syncline.payload import Encoded
from syncline.ranks import Ranks
from syncline.scratch import Scratch
from syncline.train.folder import Vocabulary
from syncline.train.model import build_model
from syncline_proto.codec import Float32
from syncline_proto.errors import ConfigError
from syncline_proto.merging import OuterSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.merge import outer_step
from syncline_testing.training import LLAMA, tiny_job

VOCABULARY, LENGTH = Vocabulary(vocab_size=257, eos_id=256), 32
AVERAGE = OuterSettings(lr=1.0, momentum=0.0, clip=None)

SIZES = {name: value for name, value in LLAMA.items() if name != "model_type"}
GROUPED = {**SIZES, "num_key_value_heads": 1}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {
    **SIZES,
    **{"num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}
LATENT = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16},
    **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16},
}
RECURRENT = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
BAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
TWO_KINDS = {**GROUPED, "layer_types": ["conv", "full_attention"]}
LINEAR = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"layer_types": ["linear_attention", "full_attention"]},
}

SDPA: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED,
    "ministral": {**GROUPED, "head_dim": 16},
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "gemma": GROUPED,
    "gemma3_text": {**GROUPED, "head_dim": 16},
    "phi": SIZES,
    "phi3": {**GROUPED, "pad_token_id": VOCABULARY.eos_id},
    "gpt2": GPT2,
    "gpt_bigcode": GPT2,
    "gpt_neox": SIZES,
    "opt": {
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64},
        **{"word_embed_proj_dim": 32, "max_position_embeddings": 64},
    },
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "stablelm": GROUPED,
    "starcoder2": GROUPED,
    "olmo2": GROUPED,
    "olmo3": GROUPED,
    "granite": GROUPED,
    "cohere": GROUPED,
    "cohere2": GROUPED,
    "glm4": {**GROUPED, "head_dim": 16},
    "smollm3": GROUPED,
    "nemotron": GROUPED,
    "ernie4_5": {**GROUPED, "head_dim": 16},
    "exaone4": GROUPED,
    "apertus": GROUPED,
    "lfm2": TWO_KINDS,
    "bamba": {**GROUPED, **BAMBA, "attn_layer_indices": [1]},
    "qwen3_5_text": {**GROUPED, **LINEAR, "head_dim": 16},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3_moe": EXPERTS,
    "olmoe": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {**ROUTED, **LATENT},
    "deepseek_v3": {**ROUTED, **LATENT},
    "glm4_moe": ROUTED,
    "minimax_m2": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "afmoe": {**EXPERTS, "num_dense_layers": 1},
}
"""Whose default is PyTorch's attention; tiny configurations by ``model_type``."""

EAGER: dict[str, dict[str, Any]] = {
    "gemma2": {**GROUPED, "head_dim": 16},
    "gpt_neo": {
        **{"hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64},
        "attention_types": [[["global", "local"], 1]],
    },
    "gptj": {**GPT2, "rotary_dim": 8},
    "codegen": {**GPT2, "n_head": 4, "rotary_dim": 4},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 64},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 2, "ffn_dim": 64},
    "gpt_oss": {**GROUPED, "num_local_experts": 4, "head_dim": 16},
    "mamba": RECURRENT,
    "falcon_mamba": RECURRENT,
    "mamba2": {**RECURRENT, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
}
"""Who have no other attention than eager, or none at all."""

FROZEN = {"deepseek_v3", "glm4_moe", "minimax_m2", "apertus", "afmoe"}
"""Those with parameters that never train, or buffers that are saved."""

FAMILIES = SDPA | EAGER


def build(model_type: str, **model: Any) -> Any:
    config = {"model_type": model_type, **FAMILIES[model_type]}
    return build_model(
        tiny_job(Path("nowhere"), steps=1, model={"config": config, **model}), VOCABULARY
    )


def loss_of(model: nn.Module, seed: int) -> Tensor:
    torch.manual_seed(seed)  # dropout, too
    ids = torch.randint(0, VOCABULARY.vocab_size, (2, LENGTH))
    return model(input_ids=ids, labels=ids).loss


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
    loss = loss_of(model, seed)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def fp32(payload: Encoded) -> Float32:
    return payload.here().view(np.float32)


class Copy:
    """One replica's model with its layout, anchors and optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.found = outline(model, Ranks()).cut()
        self.anchors = Anchors(self.found.shards, Direct(Scratch()))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for fragment in self.fragments:
            self.adopt(fragment, fp32(self.anchors.parameters(fragment)))

    @property
    def fragments(self) -> range:
        return range(len(self.found.shards))

    def adopt(self, fragment: int, values: Float32) -> None:
        self.anchors.adopt(fragment, values, pb.PullHeader(revision=1, codec=pb.CODEC_FP32))

    def spoil(self) -> None:
        with torch.no_grad():
            for parameter in self.found.parameters:
                parameter.fill_(math.nan)


def merged(replicas: list[Copy], fragment: int) -> Float32:
    """What the sync service publishes after a round of plain averaging."""
    deltas = [fp32(replica.anchors.pseudo_gradient(fragment)) for replica in replicas]
    base, total = fp32(replicas[0].anchors.parameters(fragment)) + deltas[0], sum(deltas)
    assert not isinstance(total, int)
    outer_step(base, base * 0, total, float(len(replicas)), AVERAGE)
    return total  # the outer step leaves the new parameters there


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_trains_and_merges(model_type: str) -> None:
    one = Copy(build(model_type))
    two = Copy(copy.deepcopy(one.model))
    _is_cut_along_its_blocks(one)
    first = step(one.model, one.optimizer, 1)
    step(two.model, two.optimizer, 2)
    assert first == pytest.approx(math.log(VOCABULARY.vocab_size), rel=0.3)
    values = [merged([one, two], fragment) for fragment in one.fragments]

    for fragment in two.fragments:
        two.adopt(fragment, values[fragment])
    expected = loss_of(two.model, 3)
    assert expected.isfinite()

    # What is merged only as the forward pass comes to it makes the same of the same tokens.
    one.spoil()
    pending = set(one.fragments)

    def before_forward(fragments: Iterable[int]) -> None:
        for fragment in pending & set(fragments):
            one.adopt(fragment, values[fragment])
            pending.remove(fragment)

    def before_step() -> None:
        before_forward(list(pending))

    hooks = Hooks(one.model, one.found)
    hooks.install(one.optimizer, before_forward, before_step, lambda: None)
    try:
        loss = loss_of(one.model, 3)
        assert torch.equal(loss, expected)
        assert not pending, "every fragment of these models is used in the forward pass"
        loss.backward()
        one.optimizer.step()
    finally:
        hooks.remove()
    assert all(parameter.isfinite().all() for parameter in one.found.parameters)


def _is_cut_along_its_blocks(replica: Copy) -> None:
    """Two blocks, a fragment each; together with the rest they tile what is trained, once."""
    layout = replica.found.layout
    found = blocks_in(replica.model)
    assert found is not None and len(found[1]) == 2
    names = {fragment.name for fragment in layout.fragments}
    assert {f"{found[0]}.0", f"{found[0]}.1"} <= names <= {
        f"{found[0]}.0", f"{found[0]}.1", "embeddings", "head",
    }  # fmt: skip
    trained = {n: p.numel() for n, p in replica.model.named_parameters() if p.requires_grad}
    assert {tensor.name for tensor in layout.tensors} == trained.keys()
    assert sum(shard.numel for shard in replica.found.shards) == sum(trained.values())


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_default_is_the_best_attention_that_a_family_has(model_type: str) -> None:
    best = "eager" if model_type in EAGER else "sdpa"
    assert build(model_type).config._attn_implementation == best
    assert build(model_type, attention="eager").config._attn_implementation == "eager"
    if best == "sdpa":
        assert build(model_type, attention="sdpa").config._attn_implementation == "sdpa"
        return
    with pytest.raises(ConfigError) as raised:
        build(model_type, attention="sdpa")
    said = raised.value.message
    assert said.startswith("model.attention: ") and said.endswith(
        'ForCausalLM has no sdpa, only eager attention; leave it out, or set it to "eager".'
    )


@pytest.mark.parametrize("model_type", sorted(FROZEN))
def test_what_a_family_never_trains_is_in_the_layout_as_a_hash(model_type: str) -> None:
    model = build(model_type)
    before = outline(model, Ranks()).cut().layout
    name, tensor = next(iter(frozen_tensors(model).items()))
    assert name not in {spec.name for spec in before.tensors}
    tensor.data += 1
    assert outline(model, Ranks()).cut().layout.frozen_sha256 not in ("", before.frozen_sha256)
