"""``syncline data`` to its end: what a person asks for is what is prepared, and what is told."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from syncline.cli.app import run
from syncline.data.shards import TokenShards
from syncline.data.split import HELD_OUT, TRAIN, split_of
from syncline.data.tokenizer import load_tokenizer

DOCUMENTS = 200
WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dogs",
    "while",
    "zebras",
    "graze",
)


def body(number: int) -> str:
    """Text with enough words in common for a BPE to find merges in."""
    return " ".join(WORDS[number * step % len(WORDS)] for step in range(1, 30)) + f" {number}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """JSON lines, with the text in a field of its own beside one that must not be read."""
    path = tmp_path / "notes.jsonl"
    lines = ({"text": "not this", "body": body(number)} for number in range(DOCUMENTS))
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command prints as JSON, and nothing else."""
    code = run([*words, "--json"])
    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    return json.loads(shown.out)


def test_data_is_prepared_as_the_command_says(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tokens"
    asked = ["--tokenizer", "bpe:300", "--held-out", "0.2", "--text-field", "body"]
    made = told(["data", "prepare", str(source), "--out", str(out), *asked], capsys)
    assert (made["folder"], made["tokenizer"], made["vocab_size"]) == (str(out), "tokenizers", 300)
    dealt = [split_of(f"{source.name}:{number + 1}", 0.2) for number in range(DOCUMENTS)]
    splits = {split["name"]: split for split in made["splits"]}
    assert 0.1 < splits[HELD_OUT]["documents"] / DOCUMENTS < 0.3
    for name in (TRAIN, HELD_OUT):
        own = [body(number) for number, split in enumerate(dealt) if split == name]
        assert splits[name]["documents"] == len(own)
        assert splits[name]["bytes"] == sum(len(text.encode()) for text in own)
    shards = TokenShards.open(out, TRAIN)
    assert (
        load_tokenizer(out).decode(shards.sequence(0, 40)).startswith(body(dealt.index(TRAIN))[:40])
    )
    seen = told(["data", "inspect", str(out)], capsys)
    assert {**seen, "seconds": 0} == {**made, "seconds": 0}


def test_data_is_shown_to_people_too(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tokens"
    assert run(["data", "prepare", str(source), "--out", str(out), "--text-field", "body"]) == 0
    shown = capsys.readouterr().out
    assert "byte, 257 tokens, uint16" in shown and TRAIN in shown and HELD_OUT in shown


def test_the_version_is_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(["version"], capsys)
    assert found["python"] == platform.python_version()
    assert all(found[name] for name in ("syncline", "torch", "transformers", "grpcio"))


@pytest.mark.timeout(60)
def test_devices_and_pipes_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tokens"
    assert run(["data", "prepare", "/dev/zero", "--out", str(out)]) == 13
    said = capsys.readouterr().err
    assert said.startswith("error: /dev/zero is a device") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
