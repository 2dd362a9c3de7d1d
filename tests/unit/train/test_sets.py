"""What data is told to be: replicas that would read different sequences give different names."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import torch

from syncline.train.sections import DataSection
from syncline.train.sets import sets_of
from syncline_proto.leased import Dataset
from syncline_testing.training import tiny_job

ROWS = 64


def rows(split: str, length: int, **arguments: Any) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": torch.zeros(length, dtype=torch.long)}] * ROWS


rows_with_a_name_that_says_more_of_where_they_come_from_than_anybody_asked = rows


def content(factory: str = "rows", **arguments: Any) -> str:
    data = DataSection(factory=f"{__name__}:{factory}", arguments=arguments)
    job = tiny_job(Path(), steps=8).model_copy(update={"data": data})
    told = sets_of(job, ranks=1).content
    return Dataset(sequences=ROWS, seed=0, content=told).content


def test_data_that_a_factory_makes_is_told_apart_by_what_it_was_given() -> None:
    assert content(lang="de", since=date(2024, 5, 1)) == content(since=date(2024, 5, 1), lang="de")
    told = [content(), content(lang="de"), content(lang="en"), content(of={"lang": "de"})]
    assert len(set(told)) == len(told)
    long = "rows_with_a_name_that_says_more_of_where_they_come_from_than_anybody_asked"
    assert content(long, lang="de") != content(long, lang="en")
