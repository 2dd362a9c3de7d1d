"""A model of peft in a run: adapters are all that is sent, and all that is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from syncline import Replica
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, VOCABULARY, batch, together
from syncline_testing.training import LLAMA

RANK, STEPS = 2, 12
SETTINGS = {**QUICK, "min_replicas": 2}


class Tuned:
    """A replica that trains adapters of rank 2 around a base that all replicas have."""

    def __init__(self, control: str, seed: int) -> None:
        torch.manual_seed(0)
        base = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": VOCABULARY}))
        torch.manual_seed(seed)
        how = LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"])
        self.seed, self.model = seed, get_peft_model(base, how)
        self.optimizer = torch.optim.AdamW(self.trained().values(), lr=1e-2)
        name = f"replica-{seed}"
        self.replica = Replica(
            self.model, self.optimizer, run="tuned", name=name, settings=SETTINGS, control=control
        )

    def trained(self) -> dict[str, torch.Tensor]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def frozen(self) -> dict[str, torch.Tensor]:
        named = self.model.named_parameters()
        return {name: p.clone() for name, p in named if not p.requires_grad}

    def train(self) -> None:
        for step in range(STEPS):
            tokens = batch(self.seed, step)
            self.replica.count_batch({"input_ids": tokens})
            self.model(input_ids=tokens, labels=tokens).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.replica.finish()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's own
def test_adapters_alone_travel_and_the_base_stays(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        pair = [Tuned(cluster.control_url, seed) for seed in (1, 2)]
        base = pair[0].frozen()
        together(*(one.replica.start for one in pair))
        together(*(one.train for one in pair))
        together(*(one.replica.close for one in pair))
        left, right = pair
        size = 4 * sum(parameter.numel() for parameter in left.trained().values())
        assert size == 4 * 2 * 2 * 2 * RANK * 32, "blocks, matrices, halves, rank and width"
        for one in pair:
            stats: Any = one.replica.stats
            assert stats.rounds == STEPS // 4
            # Whoever set revision 0 has sent them once more.
            assert stats.bytes_up in (stats.rounds * size, (stats.rounds + 1) * size)
        for name, parameter in left.trained().items():
            assert torch.equal(parameter, right.trained()[name]), name
        for one in pair:
            for name, parameter in one.frozen().items():
                assert torch.equal(parameter, base[name]), name
