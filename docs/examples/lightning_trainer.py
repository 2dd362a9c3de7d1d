"""Lightning: one callback more.

SYNCLINE_CONTROL=http://127.0.0.1:8500 python docs/examples/lightning_trainer.py
"""

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from syncline.integrations.lightning import SynclineCallback

SETTINGS = {"expected_replicas": 2, "sync_every": 8, "token_budget": 24_576}


def sequences(count: int = 256, length: int = 32) -> list[dict[str, torch.Tensor]]:
    """Counting by one modulo 61, from any number on."""
    rows = (torch.arange(count)[:, None] * 7 + torch.arange(length)) % 61
    return [{"input_ids": row, "labels": row} for row in rows]


class Language(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=61,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=64,
            )
        )

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


lightning.seed_everything(0, verbose=False)
module = Language()
# The same order for every replica: each begins at another place of it.
order = torch.Generator().manual_seed(0)
loader = DataLoader(sequences(), batch_size=8, shuffle=True, generator=order)
callback = SynclineCallback(run="lightning", settings=SETTINGS)
# The Trainer ends at max_steps or where the run does, whatever comes first.
trainer = lightning.Trainer(
    max_steps=1000,
    accelerator="cpu",
    devices=1,
    gradient_clip_val=1.0,
    callbacks=[callback],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(module, loader)

replica = callback.replica
assert replica is not None
print(f"{replica.name}: {replica.run_tokens} tokens")
module.model.save_pretrained(f"lightning-{replica.name}")
