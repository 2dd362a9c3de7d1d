"""A factory that cannot be called as the job has it is refused before anybody is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from syncline.train.config import JobConfig
from syncline.train.made import check_made
from syncline.train.sections import DataSection, ModelSection
from syncline.train.sizes import check_data
from syncline_proto.errors import ConfigError
from syncline_testing.training import SEQUENCE, tiny_job

CALLS: list[str] = []


def model(width: int, depth: int = 2) -> torch.nn.Module:
    CALLS.append("model")
    return torch.nn.Linear(width, depth)


def rows(split: str, length: int, count: int = 4) -> list[dict[str, torch.Tensor]]:
    CALLS.append("rows")
    return [{"input_ids": torch.zeros(length, dtype=torch.long)}] * count


printed = print  # one that says of itself that it takes anything


def job(made: str, read: str, of_model: dict[str, Any], of_data: dict[str, Any]) -> JobConfig:
    sections = {
        "model": ModelSection(factory=f"{__name__}:{made}", arguments=of_model),
        "data": DataSection(
            factory=f"{__name__}:{read}", arguments=of_data, sequence_length=SEQUENCE
        ),
    }
    return tiny_job(Path(), steps=8).model_copy(update=sections)


def check(job: JobConfig) -> None:
    check_data(job, ranks=1)
    check_made(job)


def test_what_fits_is_not_called_yet() -> None:
    check(job("model", "rows", {"width": 4}, {"count": 9}))
    check(job("model", "printed", {"width": 4}, {}))
    assert CALLS == []


@pytest.mark.parametrize(
    ("made", "read", "of_model", "of_data", "said"),
    [
        ("model", "rows", {}, {}, "model() cannot be called (missing a required argument: 'width"),
        ("model", "rows", {"width": 4, "heads": 2}, {}, "model(width=4, heads=2) cannot be called"),
        ("rows", "rows", {}, {}, "(missing a required argument: 'split'); correct model.arguments"),
        ("model", "rows", {"width": 4}, {"lang": "de"}, "rows('train', 32, lang='de') cannot be"),
        ("model", "check", {"width": 4}, {}, "(too many positional arguments); correct data.argum"),
    ],
)
def test_other_arguments_than_it_takes_are_refused(
    made: str, read: str, of_model: dict[str, Any], of_data: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        check(job(made, read, of_model, of_data))
    assert said in raised.value.message and "\n" not in raised.value.message
