"""The job of a run's record, as an export takes it up where the run's own data is not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from syncline.train.export import recorded_job, tokenizer_of
from syncline.train.sections import DataSection
from syncline_testing.training import LLAMA, tiny_data, tiny_job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("data") / "tokens")


@pytest.mark.parametrize(
    "origin",
    [
        {"path": "/nowhere"},
        {"url": "/nowhere"},
        {"source": ["/nowhere"]},
        {"factory": "nowhere:make", "arguments": {"lang": "de"}},
    ],
    ids=lambda origin: next(iter(origin)),
)
def test_a_folder_that_is_named_brings_the_tokenizer_wherever_the_data_was(
    folder: Path, origin: dict[str, Any]
) -> None:
    data = DataSection.model_validate(origin)
    made = tiny_job(folder, steps=1, model={"config": {**LLAMA, "vocab_size": 257}})
    job = recorded_job(made.model_copy(update={"data": data}).to_job(), "tiny", folder)
    assert job is not None
    tokenizer = tokenizer_of(job.data)
    assert tokenizer is not None and tokenizer.kind == "byte"
