"""A loop of one's own as a replica of a run; without a control plane it trains alone.

SYNCLINE_CONTROL=http://127.0.0.1:8500 python docs/examples/loop.py
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import syncline

SETTINGS = {"expected_replicas": 2, "sync_every": 8, "token_budget": 24_576}


def sequences(count: int = 256, length: int = 32) -> list[dict[str, torch.Tensor]]:
    """Counting by one modulo 61, from any number on."""
    rows = (torch.arange(count)[:, None] * 7 + torch.arange(length)) % 61
    return [{"input_ids": row, "labels": row} for row in rows]


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

# It takes care of a joiner's first steps, of steps that are not finite, and of a lost lease.
with syncline.Replica(model, optimizer, run="loop", settings=SETTINGS, takes_care=True) as replica:
    # Each example of an epoch is leased to one replica, whoever comes and goes.
    for batch in replica.leased(sequences(), batch_size=8):
        loss = model(**batch).loss
        loss.backward()
        replica.synchronize()  # clips the mean, where the run has a synchronous phase
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        replica.report(loss=loss)
    print(f"{replica.name}: {replica.run_tokens} tokens, loss {loss.item():.2f}")

model.save_pretrained(f"loop-{replica.name}")
