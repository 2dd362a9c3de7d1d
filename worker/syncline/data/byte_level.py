"""The byte tokenizer as a ``tokenizers`` file: a byte-level BPE without merges.

Pure. It exists so that plain ``transformers`` opens what the byte tokenizer saved and finds the
same ids. It is written by hand and never by the library, so that the tokenizer's fingerprint does
not hang on the library's version.
"""

import json

END_OF_DOCUMENT = "<|endoftext|>"


def byte_level_json() -> bytes:
    """The content of tokenizer.json: the same bytes, always and everywhere."""
    # GPT-2's names for bytes: printable Latin-1 characters are themselves, the others get
    # characters from 256 on, in order. Source: openai/gpt-2, src/encoder.py, bytes_to_unicode.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {
        chr(byte if byte in printable else 256 + others.index(byte)): byte for byte in range(256)
    }
    end = {"id": 256, "content": END_OF_DOCUMENT, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    # Without the regex nothing is split off, so merges could not differ; there are none anyway.
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, **flags}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    return json.dumps(tokenizer, indent=1, ensure_ascii=True).encode("ascii")
