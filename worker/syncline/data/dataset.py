"""Token shards as a PyTorch dataset.

A module of its own because of torch: preparing and inspecting data never import it.
"""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from syncline.data.errors import DataError
from syncline.data.shards import TokenShards


class TokenDataset(Dataset[dict[str, torch.Tensor]]):
    """Sequences as the batches that Hugging Face models take.

    ``labels`` equal ``input_ids``: those models shift inside, so ``model(**batch).loss`` is the
    mean over the ``length - 1`` predictions that a sequence has.
    """

    def __init__(self, shards: TokenShards, length: int) -> None:
        if length < 2:
            raise DataError(f"sequences need at least 2 tokens to predict one, got {length}.")
        if not shards.num_sequences(length):
            raise DataError(
                f"the split {shards.split!r} of {shards.folder} has {shards.tokens} tokens, too "
                f"few for one sequence of {length}; prepare more text or shorten the sequences."
            )
        self.shards = shards
        self.length = length

    @classmethod
    def open(cls, folder: str | Path, split: str = "train", *, length: int) -> "TokenDataset":
        """The split's sequences of ``length`` tokens."""
        return cls(TokenShards.open(folder, split), length)

    def __len__(self) -> int:
        return self.shards.num_sequences(self.length)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.shards.sequence(index, self.length)[:-1]
        input_ids = torch.from_numpy(ids.astype(np.int64))
        # A copy: a collator that masks labels must not mask inputs.
        return {"input_ids": input_ids, "labels": input_ids.clone()}
