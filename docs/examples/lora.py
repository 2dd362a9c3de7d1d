"""LoRA with peft: only the adapters are trained, so only they travel.

SYNCLINE_CONTROL=http://127.0.0.1:8500 python docs/examples/lora.py
"""

import torch
from peft import LoraConfig, get_peft_model
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import syncline

SETTINGS = {"expected_replicas": 2, "sync_every": 8, "token_budget": 24_576}


def sequences(count: int = 256, length: int = 32) -> list[dict[str, torch.Tensor]]:
    """Counting by one modulo 61, from any number on."""
    rows = (torch.arange(count)[:, None] * 7 + torch.arange(length)) % 61
    return [{"input_ids": row, "labels": row} for row in rows]


# Every replica begins from the same base: here by the seed, elsewhere by from_pretrained.
torch.manual_seed(0)
base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
)
model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-2)
# The same order for every replica: the batches are dealt among them.
order = torch.Generator().manual_seed(0)
loader = DataLoader(sequences(), batch_size=8, shuffle=True, generator=order)

with syncline.Replica(model, optimizer, run="lora", settings=SETTINGS) as replica:
    schedule = LambdaLR(optimizer, lambda step: replica.lr_factor)  # short steps for a joiner
    while not replica.done:
        for batch in replica.shard(loader):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            replica.report(loss=loss)
    sent = replica.stats.bytes_up
    print(f"{replica.name}: {replica.run_tokens} tokens, loss {loss.item():.2f}, {sent} bytes sent")

model.save_pretrained(f"lora-{replica.name}")  # the adapters alone
