"""Text to token ids and back, behind one small port.

Two kinds: the byte tokenizer, which needs no library to encode, and anything that a ``tokenizers``
JSON file describes, a byte-level BPE trained on the spot included. Both save a folder that
``transformers.AutoTokenizer`` opens offline, with the same ids. Encoding never yields a special
token, whatever the text says: only the writer of shards ends a document.
"""

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from syncline.data.byte_level import END_OF_DOCUMENT, byte_level_json
from syncline.data.errors import DataError

# What well-known tokenizers call it, asked for in this order where no tokenizer_config.json says.
END_OF_DOCUMENT_NAMES = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
# Files that transformers reads beside tokenizer.json; kept as they came.
COMPANIONS = (CONFIG_FILE, "special_tokens_map.json", "chat_template.jinja")
BPE_VOCAB_SIZE = 8192


class Tokenizer(Protocol):
    """What the data modules ask of a tokenizer."""

    @property
    def kind(self) -> str:
        """``byte`` or ``tokenizers``."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def eos_id(self) -> int:
        """The id that ends a document."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the saved tokenizer.json, in hex: equal means equal ids."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """The text's ids, uint32, without an end-of-document id."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Like ``encode`` for each, on all the cores that the library has."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The ids' text; special tokens are left out, broken UTF-8 becomes U+FFFD."""
        ...

    def save(self, folder: Path) -> None:
        """Write the files that ``AutoTokenizer.from_pretrained(folder)`` needs."""
        ...


def utf8_bytes(text: str) -> bytes:
    """The text's bytes: those a reader could not decode come back as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that no byte stands behind
        return text.encode("utf-8", "replace")


class ByteTokenizer:
    """The 256 bytes, and one id more that ends a document. The id of a byte is its value."""

    kind = "byte"
    vocab_size = 257
    eos_id = 256

    def __init__(self) -> None:
        self._json = byte_level_json()
        self.fingerprint = hashlib.sha256(self._json).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8_bytes(text), dtype=np.uint8).astype(np.uint32)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(int(i) for i in ids if int(i) != self.eos_id).decode("utf-8", "replace")

    def save(self, folder: Path) -> None:
        _save(folder, self._json, {CONFIG_FILE: _config(END_OF_DOCUMENT)})


class FileTokenizer:
    """A tokenizer that a ``tokenizers`` JSON file describes.

    The JSON is kept byte for byte, so that saving and loading never change the fingerprint.
    """

    kind = "tokenizers"

    def __init__(self, data: bytes, companions: Mapping[str, bytes], origin: str) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise DataError(
                f"{origin} is not a tokenizers file: {str(error).rstrip('.')}."
            ) from error
        # Settings for feeding models; here they would cut or pad documents, or end them early.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._json = data
        vocabulary = self._tokenizer.get_vocab()
        eos = _end_of_document(vocabulary, companions.get(CONFIG_FILE), origin)
        self._companions = {CONFIG_FILE: _config(eos), **companions}
        self.eos_id = vocabulary[eos]
        self.vocab_size = max(vocabulary.values()) + 1
        self.fingerprint = hashlib.sha256(data).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        # Rust strings hold no lone surrogates.
        clean = [utf8_bytes(text).decode("utf-8", "replace") for text in texts]
        encoded = self._tokenizer.encode_batch_fast(clean, add_special_tokens=False)
        return [np.array(one.ids, dtype=np.uint32) for one in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def save(self, folder: Path) -> None:
        _save(folder, self._json, self._companions)


def bpe_size_of(tokenizer: str | Tokenizer, vocab_size: int | None = None) -> int | None:
    """The vocabulary of a BPE to train; None where the tokenizer is there already.

    Raises:
        DataError: it is none, or smaller than bytes need; or it is given for another tokenizer.
    """
    kind, _, size = tokenizer.partition(":") if isinstance(tokenizer, str) else ("", "", "")
    if kind != "bpe":
        if vocab_size is not None:
            raise DataError("a vocabulary size is for a tokenizer to be trained: bpe:VOCAB.")
        return None
    if size and (not size.isdecimal() or vocab_size not in (None, int(size))):
        raise DataError(f"{tokenizer} is no vocabulary size; write bpe:8192, say.")
    wanted = int(size) if size else vocab_size
    return BPE_VOCAB_SIZE if wanted is None else _checked_size(wanted)


def train_bpe(texts: Iterable[str], vocab_size: int, *, progress: bool = True) -> FileTokenizer:
    """Train a byte-level BPE of ``vocab_size`` ids, the end of document included, on the texts.

    The same texts give the same tokenizer; texts with too few words in common give fewer ids.

    Raises:
        DataError: the vocabulary is smaller than the 257 ids that bytes need.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    _checked_size(vocab_size)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress,
    )
    # The library calls ``texts`` from threads of its own and keeps the calling one in Rust, where
    # Ctrl+C waits for the end of training; so the calling one only waits, and ends the texts.
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(
                tokenizer.train_from_iterator, _clean(texts, stopped), trainer=trainer
            ).result()
        finally:
            stopped.set()
    return FileTokenizer(tokenizer.to_str().encode("utf-8"), {}, "the trained tokenizer")


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """The tokenizer that ``spec`` names: ``byte``, a tokenizer.json, or a folder that holds one.

    Raises:
        DataError: there is no such file, or it is no tokenizer.
    """
    if spec == "byte":
        return ByteTokenizer()
    if str(spec) == "bpe" or str(spec).startswith("bpe:"):
        raise DataError(f"{spec} asks to train a tokenizer, which only preparing data does.")
    path = Path(spec)
    path = path / TOKENIZER_FILE if path.is_dir() else path
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a device, pipe or socket, and no tokenizer file.")
    try:
        data = path.read_bytes()
        beside = [path.parent / name for name in COMPANIONS]
        companions = {one.name: one.read_bytes() for one in beside if one.is_file()}
    except OSError as error:
        raise DataError(
            f"no tokenizer at {path} ({error.strerror}); "
            f"give byte, a {TOKENIZER_FILE}, or a folder that holds one."
        ) from error
    byte_level = ByteTokenizer()
    if hashlib.sha256(data).hexdigest() == byte_level.fingerprint:
        return byte_level
    return FileTokenizer(data, companions, str(path))


def _checked_size(vocab_size: int) -> int:
    """How many ids a BPE is to have.

    Raises:
        DataError: fewer than bytes need.
    """
    if vocab_size < ByteTokenizer.vocab_size:
        raise DataError(
            f"a byte-level BPE needs at least {ByteTokenizer.vocab_size} ids, got {vocab_size}."
        )
    return vocab_size


def _clean(texts: Iterable[str], stopped: threading.Event) -> Iterator[str]:
    for text in texts:
        if stopped.is_set():
            return
        yield utf8_bytes(text).decode("utf-8", "replace")


def _end_of_document(vocabulary: Mapping[str, int], config: bytes | None, origin: str) -> str:
    """The name of the token that ends a document: what the config says, or a well-known one."""
    names = list(END_OF_DOCUMENT_NAMES)
    if config is not None:
        try:
            said = json.loads(config).get("eos_token")
        except (ValueError, AttributeError) as error:
            raise DataError(f"{CONFIG_FILE} beside {origin} is not a JSON object.") from error
        # transformers writes either the name or a table about it.
        name = said.get("content") if isinstance(said, dict) else said
        names = [name, *names] if isinstance(name, str) else names
    for name in names:
        if name in vocabulary:
            return name
    raise DataError(
        f"{origin} has no end-of-document token; "
        f"name one as eos_token in a {CONFIG_FILE} beside it."
    )


def _config(eos: str) -> bytes:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos,
        # Older transformers would drop the space before punctuation on decoding.
        "clean_up_tokenization_spaces": False,
    }
    return json.dumps(config, indent=2).encode()


def _save(folder: Path, tokenizer_json: bytes, companions: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {TOKENIZER_FILE: tokenizer_json, **companions}.items():
        (folder / name).write_bytes(data)
