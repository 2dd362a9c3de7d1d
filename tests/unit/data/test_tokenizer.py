"""Text survives its tokens, and plain transformers sees the same ids as we do."""

import itertools
import json
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.data.errors import DataError
from syncline.data.tokenizer import ByteTokenizer, FileTokenizer, load_tokenizer, train_bpe

TEXTS = [
    "",
    "def f(x):\n    return x  # twice  \n\n\n",
    " leading, trailing \t\r\n",
    "naïve Ω 日本語 🙂🏽 \x00\x7f\u200b",
    "it says <|endoftext|> in the middle",
]
SAMPLE = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in (json, warnings)]
CALM = settings(deadline=None, max_examples=60)


@pytest.fixture(scope="module")
def bpe() -> FileTokenizer:
    return train_bpe(SAMPLE, 600, progress=False)


def auto_tokenizer(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@CALM
@given(st.text())
def test_bytes_survive_the_byte_tokenizer(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.dtype == np.uint32 and tokenizer.eos_id not in ids


@CALM
@given(st.binary())
def test_undecodable_bytes_keep_their_ids(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert bytes(ByteTokenizer().encode(text).astype(np.uint8)) == data


def test_a_lone_surrogate_is_no_crash(bpe: FileTokenizer) -> None:
    assert ByteTokenizer().decode(ByteTokenizer().encode("a\ud800b")) == "a?b"
    assert bpe.decode(bpe.encode("a\udcffb")) == "a\ufffdb"


@CALM
@given(text=st.text())
def test_text_survives_a_trained_tokenizer(text: str, bpe: FileTokenizer) -> None:
    assert bpe.decode(bpe.encode(text)) == text


def test_a_trained_tokenizer_compresses_and_is_deterministic(bpe: FileTokenizer) -> None:
    assert bpe.vocab_size == 600
    assert len(bpe.encode(SAMPLE[0])) < len(SAMPLE[0]) / 2
    assert train_bpe(SAMPLE, 600, progress=False).fingerprint == bpe.fingerprint


def test_training_ends_on_ctrl_c() -> None:
    def endless() -> Iterator[str]:
        for number in itertools.count():
            if number == 100:
                # To the main thread, as the system does with Ctrl+C; this one is the library's.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if number >= 100:
                time.sleep(0.01)  # else its threads may keep Python's lock from the main one
            yield SAMPLE[0]

    with pytest.raises(KeyboardInterrupt):
        train_bpe(endless(), 300, progress=False)


def test_a_vocabulary_below_the_bytes_is_refused() -> None:
    with pytest.raises(DataError, match="at least 257 ids, got 256"):
        train_bpe(SAMPLE, 256, progress=False)


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_transformers_sees_the_same_ids(kind: str, bpe: FileTokenizer, tmp_path: Path) -> None:
    ours = ByteTokenizer() if kind == "byte" else bpe
    ours.save(tmp_path)
    theirs = auto_tokenizer(tmp_path)
    assert theirs.eos_token_id == ours.eos_id
    assert len(theirs) == ours.vocab_size
    for text in TEXTS[:-1]:
        ids = ours.encode(text).tolist()
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids) == ours.decode(ids) == text
    # Every byte, and what a young model writes: broken UTF-8.
    broken = [0xE2, 0x82, 0x20, 0xFF, 0x41, 0xC3, 256]
    byte = ByteTokenizer()
    byte.save(tmp_path / "byte")
    assert auto_tokenizer(tmp_path / "byte").decode(
        broken, skip_special_tokens=True
    ) == byte.decode(broken)


def test_every_byte_has_its_own_id_in_the_saved_file(tmp_path: Path) -> None:
    import tokenizers

    ByteTokenizer().save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "".join(map(chr, range(0x800)))
    assert library.encode(text).ids == ByteTokenizer().encode(text).tolist()
    assert sorted(library.get_vocab().values()) == list(range(257))


def test_a_document_never_ends_itself(bpe: FileTokenizer) -> None:
    for tokenizer in (ByteTokenizer(), bpe):
        ids = tokenizer.encode(TEXTS[-1])
        assert tokenizer.eos_id not in ids
        assert tokenizer.decode(ids) == TEXTS[-1]


def test_saving_and_loading_keeps_the_fingerprint(bpe: FileTokenizer, tmp_path: Path) -> None:
    for number, tokenizer in enumerate((ByteTokenizer(), bpe)):
        folder = tmp_path / str(number)
        tokenizer.save(folder)
        for spec in (folder, str(folder / "tokenizer.json")):
            loaded = load_tokenizer(spec)
            assert (loaded.kind, loaded.fingerprint) == (tokenizer.kind, tokenizer.fingerprint)
            assert loaded.eos_id == tokenizer.eos_id
    assert load_tokenizer("byte").fingerprint == ByteTokenizer().fingerprint


def test_the_byte_tokenizer_never_changes() -> None:
    # Prepared data in the field carries this number: a change needs a new kind.
    assert ByteTokenizer().fingerprint.startswith("2756e3e34b0d6e0b")


def test_settings_of_a_file_do_not_cut_documents(tmp_path: Path, bpe: FileTokenizer) -> None:
    bpe.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text())
    described["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(described))
    assert load_tokenizer(path).decode(load_tokenizer(path).encode(SAMPLE[0])) == SAMPLE[0]


def test_the_end_of_document_comes_from_the_config_or_is_asked_for(
    tmp_path: Path, bpe: FileTokenizer
) -> None:
    bpe.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|fin|>"))
    config = tmp_path / "tokenizer_config.json"
    config.unlink()
    with pytest.raises(DataError, match="has no end-of-document token; name one as eos_token"):
        load_tokenizer(path)
    config.write_text('{"eos_token": {"content": "<|fin|>"}}')
    assert load_tokenizer(path).eos_id == bpe.eos_id


@pytest.mark.parametrize(
    ("spec", "message"),
    [("bpe:8192", "only preparing data"), ("nowhere/tokenizer.json", "no tokenizer at nowhere")],
)
def test_what_is_no_tokenizer_is_said(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_tokenizer(spec)


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"a": 1}')
    with pytest.raises(DataError, match=f"{path} is not a tokenizers file"):
        load_tokenizer(path)
