"""From text to token sequences: reading, tokenizing, storing, and dealing them out.

Names are resolved on first use, so that preparing text does not pay for importing torch and
training does not pay for importing pyarrow. ``prepare`` and ``inspect`` stay in the module that
bears the first one's name: ``from syncline.data.prepare import inspect, prepare``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from syncline.data.dataset import TokenDataset
    from syncline.data.errors import DataError
    from syncline.data.order import SequenceStream
    from syncline.data.shards import TokenShards, bits_per_byte
    from syncline.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer, train_bpe

__all__ = [
    "ByteTokenizer",
    "DataError",
    "SequenceStream",
    "TokenDataset",
    "TokenShards",
    "Tokenizer",
    "bits_per_byte",
    "load_tokenizer",
    "train_bpe",
]

_ROOMS = {
    "ByteTokenizer": "tokenizer",
    "DataError": "errors",
    "SequenceStream": "order",
    "TokenDataset": "dataset",
    "TokenShards": "shards",
    "Tokenizer": "tokenizer",
    "bits_per_byte": "shards",
    "load_tokenizer": "tokenizer",
    "train_bpe": "tokenizer",
}


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
