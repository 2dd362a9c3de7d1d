"""A model becomes a layout: canonical names, one fragment a block, ties once, frozen as a hash."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from syncline.core.cutting import cut
from syncline.hooks import places
from syncline.layout import ModelLayout, outline
from syncline.ranks import Ranks
from syncline_proto.errors import ConfigError
from syncline_proto.layout import Layout, difference
from syncline_testing.replicas import TinyModel


def described(model: nn.Module, **how: Any) -> ModelLayout:
    return outline(model, Ranks()).cut(**how)


def layout_of(model: nn.Module) -> Layout:
    return described(model).layout


def llama(**config: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
    return LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=2, **config))


def test_a_llama_is_cut_into_embeddings_blocks_and_head() -> None:
    layout = layout_of(llama())
    names = [fragment.name for fragment in layout.fragments]
    assert names == ["embeddings", "model.layers.0", "model.layers.1", "head"]
    inside = {f.name: {layout.tensors[b.tensor].name for b in f.boxes} for f in layout.fragments}
    assert inside["embeddings"] == {"model.embed_tokens.weight"}
    assert inside["head"] == {"model.norm.weight", "lm_head.weight"}
    assert "model.layers.1.mlp.up_proj.weight" in inside["model.layers.1"]


def test_a_tied_tensor_travels_once_and_both_its_users_wait() -> None:
    model = llama(tie_word_embeddings=True)
    found = described(model)
    assert found.layout.tensors[0].aliases == ("lm_head.weight",)
    assert [t.name for t in found.layout.tensors].count("lm_head.weight") == 0
    waiting = places(model, found)[0]
    assert model.get_submodule("lm_head") in waiting
    assert model.get_submodule("model.embed_tokens") in waiting


def test_frozen_tensors_are_hashed_and_never_travel() -> None:
    model = TinyModel()
    for parameter in model.blocks.parameters():
        parameter.requires_grad_(False)
    for block in model.blocks:  # as LoRA does it: small trainable parts beside frozen ones
        block.register_parameter("adapter", nn.Parameter(torch.zeros(16, 2)))
    layout = layout_of(model)
    assert [f.name for f in layout.fragments] == ["embeddings", "blocks.0", "blocks.1", "head"]
    assert len(layout.frozen_sha256) == 64
    assert "blocks.0.up.weight" not in {tensor.name for tensor in layout.tensors}
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_parameter("blocks.1.up.bias")[3] += 1e-3
    assert "frozen" in (difference(layout, layout_of(other)) or "")


def test_wrappers_leave_no_trace_in_names() -> None:
    plain = TinyModel()
    wrapped = copy.deepcopy(plain)
    for i, block in enumerate(list(wrapped.blocks)):
        wrapped.blocks[i] = checkpoint_wrapper(block)
    compiled = torch.compile(wrapped, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert layout_of(compiled).fingerprint() == layout_of(plain).fingerprint()


def test_an_attribute_called_module_is_a_name_like_any_other() -> None:
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    assert [t.name for t in layout_of(model).tensors] == ["module.weight", "module.bias"]


def test_a_list_inside_of_a_block_is_not_taken_for_the_blocks() -> None:
    model = TinyModel()
    for block in model.blocks:
        block.experts = nn.ModuleList([nn.Linear(2, 2) for _ in range(9)])
    assert [f.name for f in layout_of(model).fragments][1:3] == ["blocks.0", "blocks.1"]


def test_without_a_list_of_blocks_each_child_is_a_fragment() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    assert [f.name for f in layout_of(model).fragments] == ["0", "2"]


def test_a_large_fragment_is_split_and_still_holds_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("syncline.layout.cut", partial(cut, elements_max=200))
    model = TinyModel()
    found = described(model)
    assert [f.name for f in found.layout.fragments[:2]] == ["embeddings.0", "embeddings.1"]
    rows = [piece.local for shard in found.shards[:2] for piece in shard.pieces]
    assert torch.equal(torch.cat(rows), model.embed.weight)
    assert sum(shard.numel for shard in found.shards) == found.layout.numel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_a_persistent_float_buffer_is_hashed_with_the_frozen_tensors(dtype: torch.dtype) -> None:
    model = TinyModel()
    model.blocks[1].register_buffer("bias", torch.zeros(3, dtype=dtype))
    layout = layout_of(model)
    assert len(layout.frozen_sha256) == 64
    assert "blocks.1.bias" not in {tensor.name for tensor in layout.tensors}
    model.get_buffer("blocks.1.bias")[2] = 1
    assert "frozen" in (difference(layout, layout_of(model)) or "")


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_only_saved_running_statistics_in_training_are_refused(norm: type[nn.Module]) -> None:
    model = TinyModel()
    model.blocks[1].norm = checkpoint_wrapper(norm(4))
    with pytest.raises(ConfigError, match=r"^The buffer blocks\.1\.norm\.running_mean changes"):
        layout_of(model)
    model.blocks[1].eval()
    assert layout_of(model).frozen_sha256
    model.train()
    inner = model.get_submodule("blocks.1.norm._checkpoint_wrapped_module")
    for name in ("running_mean", "running_var"):
        inner.register_buffer(name, inner.get_buffer(name), persistent=False)
    assert not layout_of(model).frozen_sha256
    model.blocks[1].norm = norm(4, track_running_stats=False)
    assert not layout_of(model).frozen_sha256


def test_integer_and_passing_buffers_are_no_matter() -> None:
    model = TinyModel()
    model.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
    model.register_buffer("mask", torch.zeros(1), persistent=False)
    assert layout_of(model).fingerprint() == layout_of(TinyModel()).fingerprint()


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter"):
        layout_of(TinyModel().requires_grad_(False))


def test_parameters_that_cannot_be_written_one_by_one_are_named() -> None:
    def model(**odd: torch.Tensor) -> nn.Module:
        made = nn.Sequential(nn.Linear(4, 4))
        for name, values in odd.items():
            made[0].register_parameter(name, nn.Parameter(values))
        return made

    flat = torch.randn(8, 4)
    with pytest.raises(ConfigError, match=r"^Elements of 0\.wide share memory"):
        layout_of(model(wide=torch.ones(1).expand(8)))
    with pytest.raises(ConfigError, match=r"^0\.a and 0\.b have a part of their memory in common"):
        layout_of(model(b=flat[1:7], a=flat[:3]))
    columns = flat.t()
    beside = {"up": flat[:4], "none": flat[4:4], "down": flat[4:], "one": torch.ones(())}
    assert layout_of(model(**beside)).numel == 20 + 32 + 1
    assert layout_of(model(left=columns[:, :4], right=columns[:, 4:])).numel == 20 + 32
    assert layout_of(model(same=columns, again=flat)).numel == 20 + 64


def test_parameters_without_values_are_named() -> None:
    with torch.device("meta"):
        nowhere = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"^0\.weight is on the meta device"):
        layout_of(nowhere)
    with pytest.raises(ConfigError, match=r"^1\.weight is on the meta device"):
        layout_of(nn.Sequential(nn.Linear(4, 4), nowhere[0].requires_grad_(False)))
    with pytest.raises(ConfigError, match=r"^1\.weight has no shape yet"):
        layout_of(nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4)))
    with torch.inference_mode():
        read_only = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"^0\.weight was made in torch\.inference_mode"):
        layout_of(read_only)


def test_a_fragment_of_nothing_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_parameter("none", nn.Parameter(torch.empty(3, 0)))
    with pytest.raises(ConfigError, match="^none is empty, and nothing is with it"):
        layout_of(model)


@pytest.mark.parametrize(
    ("together", "blocks"),
    [
        (1, ["blocks.0", "blocks.1", "blocks.2"]),
        (2, ["blocks.0-1", "blocks.2"]),
        (9, ["blocks.0-2"]),
    ],
)
def test_neighbouring_blocks_are_one_fragment_where_the_run_says_so(
    together: int, blocks: list[str]
) -> None:
    model = TinyModel()
    model.blocks.append(checkpoint_wrapper(copy.deepcopy(model.blocks[0])))
    found = described(model, blocks_per_fragment=together)
    fragments, tensors = found.layout.fragments, found.layout.tensors
    assert [fragment.name for fragment in fragments] == ["embeddings", *blocks, "head"]
    boxes = [box.tensor for fragment in fragments for box in fragment.boxes]
    assert boxes == [*range(len(tensors))]
    last = {tensors[box.tensor].name.split(".")[1] for box in fragments[-2].boxes}
    assert last == {str(number) for number in range(3) if number // together == 2 // together}
    assert model.blocks[2] in places(model, found)[-2]
