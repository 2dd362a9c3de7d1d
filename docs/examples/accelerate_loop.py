"""Accelerate: give the replica what ``prepare`` returns, and it finds what is inside.

SYNCLINE_CONTROL=http://127.0.0.1:8500 python docs/examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import syncline

SETTINGS = {"expected_replicas": 2, "sync_every": 8, "token_budget": 24_576}


def sequences(count: int = 256, length: int = 32) -> list[dict[str, torch.Tensor]]:
    """Counting by one modulo 61, from any number on."""
    rows = (torch.arange(count)[:, None] * 7 + torch.arange(length)) % 61
    return [{"input_ids": row, "labels": row} for row in rows]


accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
# The same order for every replica: the batches are dealt among them.
order = torch.Generator().manual_seed(0)
loader = DataLoader(sequences(), batch_size=4, shuffle=True, generator=order)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

with syncline.Replica(model, optimizer, run="accelerate", settings=SETTINGS) as replica:
    schedule = LambdaLR(optimizer, lambda step: replica.lr_factor)  # short steps for a joiner
    while not replica.done:
        for batch in replica.shard(loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:  # a step is due
                    replica.synchronize()
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            replica.report(loss=loss)
    print(f"{replica.name}: {replica.run_tokens} tokens, loss {loss.item():.2f}")

accelerator.unwrap_model(model).save_pretrained(f"accelerate-{replica.name}")
