"""Which documents are held out: a rule on the document's name alone.

Pure: the same name falls on the same side on every machine, in every order of reading, and when
other documents come or go. So a corpus that grows never moves a document that models were
trained on into the held-out part.
"""

import hashlib

TRAIN = "train"
HELD_OUT = "held-out"


def unit_hash(name: str) -> float:
    """A number in [0, 1) that depends on the name alone, evenly spread."""
    data = name.encode("utf-8", "surrogateescape")
    # 53 bits, so that the division is exact and 1.0 is never reached.
    return (int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) >> 11) / 2**53


def split_of(name: str, held_out_fraction: float) -> str:
    """The split that the document of this name belongs to."""
    return HELD_OUT if unit_hash(name) < held_out_fraction else TRAIN
