"""A model of peft in a run: adapters are all that is sent, and all that is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from syncline import Replica
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, VOCABULARY, batch, published, together
from syncline_testing.training import LLAMA
from syncline_testing.two_ranks import two_ranks

RANK, STEPS = 2, 12
SETTINGS = {**QUICK, "min_replicas": 2}

SHARDED = """
import json
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM
from syncline import Replica
from syncline.layout import whole
from syncline_testing.replicas import VOCABULARY, batch
from syncline_testing.training import LLAMA

torch.set_num_threads(1)
torch.manual_seed(0)
base = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": VOCABULARY}))
model = get_peft_model(base, LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"]))
for block in base.model.layers:
    fully_shard(block)
fully_shard(model)

def values(trained):
    named = model.named_parameters()
    return {name: whole(p).tolist() for name, p in named if p.requires_grad == trained}

frozen, adapters = values(False), values(True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
how = {"run": "sharded", "name": "pair", "settings": SETTINGS, "control": CONTROL}
with Replica(model, optimizer, **how) as replica:
    for step in range(STEPS):
        tokens = batch(rank, step)
        replica.count_batch({"input_ids": tokens})
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    replica.finish()
    kept, changed = values(False) == frozen, values(True) != adapters
    stats = replica.stats
    moved = [replica.revision, stats.rounds, stats.bytes_up, stats.bytes_down]
    print(json.dumps([kept, changed, moved, values(True)]))
"""


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
        sent = 0
        for one in pair:
            stats: Any = one.replica.stats
            assert stats.rounds == STEPS // 4
            # Whoever set a fragment's revision 0 has sent that once more; both may have, at once.
            assert stats.rounds * size <= stats.bytes_up <= (stats.rounds + 1) * size
            sent += stats.bytes_up
        assert sent >= (2 * (STEPS // 4) + 1) * size
        for name, parameter in left.trained().items():
            assert torch.equal(parameter, right.trained()[name]), name
        for one in pair:
            for name, parameter in one.frozen().items():
                assert torch.equal(parameter, base[name]), name


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's own
def test_of_sharded_ranks_too_adapters_alone_travel(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    with Cluster(tmp_path / "services") as cluster:
        own = {"CONTROL": cluster.control_url, "SETTINGS": QUICK, "RANK": RANK, "STEPS": STEPS}
        set_first = "".join(f"{name} = {value!r}\n" for name, value in own.items())
        said = two_ranks(tmp_path, set_first + SHARDED)
        held, revision = published(cluster.sync_address, "sharded")
    first, second = (json.loads(one.splitlines()[-1]) for one in said)
    assert first == second
    kept, changed, (at, rounds, up, down), adapters = first
    assert kept and changed and at == revision and rounds == STEPS // 4
    assert held.keys() == adapters.keys() and all("lora_" in name for name in held)
    for name, value in adapters.items():
        assert np.array_equal(held[name], value), name
    size = 4 * sum(map(np.size, held.values()))
    # The values of revision 0 once more, and rounds; of both ranks together.
    assert up == down == (rounds + 1) * size
