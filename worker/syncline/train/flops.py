"""How fast a model could be trained if its devices did nothing but what it asks for (MFU).

    flops of a token = 6 N + 12 L A T

N: parameters that are multiplied with (tables that are only looked up in are not), L: layers,
A: heads times their size, T: tokens of a sequence. Six is two for the forward pass and four for the
backward; what activation checkpointing computes again does not count, nor does it that half of the
attention is masked. Source: PaLM, appendix B (arXiv 2204.02311).
"""

from __future__ import annotations

import re

import torch
from torch import nn
from transformers import PreTrainedModel

from syncline.train.config import JobConfig
from syncline.train.ranks import RankGroup

DENSE = frozenset(
    {
        *("cohere", "falcon", "gemma", "glm", "gpt2", "gpt_bigcode", "gpt_neox", "granite"),
        *("helium", "llama", "mistral", "nemotron", "olmo", "olmo2", "opt", "phi", "phi3"),
        *("qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"),
    }
)
"""Model types in which every token meets every matrix, and all tokens before it. Others (experts,
state spaces, sparse attention) need another formula."""

PEAK_TERAFLOPS = (
    (r"B200", 2250.0),  # DGX B200 data sheet: 72 PFLOPS of fp8 with sparsity on eight, a quarter
    (r"H200 NVL", 835.5),
    (r"H200|GH200", 989.4),
    (r"H100 PCIe", 756.0),
    (r"H100 NVL", 835.5),
    (r"H100|H800", 989.4),
    (r"A100|A800", 312.0),
    (r"L40S", 362.05),
    (r"L40", 181.05),
    (r"L4", 121.0),
    (r"A40", 149.7),
    (r"A30", 165.0),
    (r"A10", 125.0),
    (r"RTX A6000", 154.8),
    (r"RTX 6000 Ada", 364.2),
    (r"RTX 5090", 209.5),  # consumers' cards: with sums in fp32
    (r"RTX 4090", 165.2),
    (r"RTX 3090", 71.0),
)
"""Of dense matrices in bf16, by what CUDA calls the device; the first that fits counts.

Source: NVIDIA's data sheets of these products and, for consumers' cards, its white papers of the
architectures Ampere (GA102), Ada and Blackwell. Figures with sparsity were halved.
"""

OTHERS = re.compile(r"Laptop|Max-Q|MIG|\d D$")
"""Variants of these names that are slower, by how much nobody says."""


def peak_flops(device: str) -> float | None:
    """What a device of this name can do in a second; None where it is not known."""
    if OTHERS.search(device):
        return None
    for name, tera in PEAK_TERAFLOPS:
        if re.search(rf"\b(?:{name})\b", device):
            return tera * 1e12
    return None


def flops_per_token(model: nn.Module, length: int) -> float | None:
    """What one token of a sequence of ``length`` takes in training; None where it is not known."""
    if not isinstance(model, PreTrainedModel):
        return None
    config = model.config
    window = getattr(config, "sliding_window", None)
    if config.model_type not in DENSE or (window is not None and window < length):
        return None
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return None  # the backward pass is shorter, by what lies behind them
    head = model.get_output_embeddings()
    used = head.weight if isinstance(head, nn.Module) else None
    tables = [
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.weight is not used
    ]
    multiplied = sum(p.numel() for p in model.parameters()) - sum(t.numel() for t in tables)
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 6.0 * multiplied + 12.0 * config.num_hidden_layers * heads * size * length


def tokens_at_peak(model: nn.Module, job: JobConfig, ranks: RankGroup) -> float | None:
    """Tokens a second of a replica whose devices are at their peak; None where it is not known."""
    peak = job.log.peak_flops
    if peak is None and ranks.device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(ranks.device))
    flops = flops_per_token(model, job.data.sequence_length)
    passes = 2 if job.optimizer.name == "wsam" else 1
    return None if peak is None or flops is None else ranks.count * peak / (passes * flops)
