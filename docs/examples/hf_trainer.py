"""The Trainer of transformers: one callback more.

SYNCLINE_CONTROL=http://127.0.0.1:8500 python docs/examples/hf_trainer.py
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from syncline.integrations.transformers import SynclineCallback

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
# The Trainer ends at max_steps or where the run does, whatever comes first.
arguments = TrainingArguments(
    output_dir="hf-trainer",
    max_steps=1000,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    logging_steps=8,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
callback = SynclineCallback(run="hf-trainer", settings=SETTINGS)
trainer = Trainer(model, arguments, train_dataset=sequences(), callbacks=[callback])
ended = trainer.train()

replica = callback.replica
assert replica is not None
print(f"{replica.name}: {replica.run_tokens} tokens, mean loss {ended.training_loss:.2f}")
model.save_pretrained(f"hf-trainer-{replica.name}")
