"""What pydantic finds wrong becomes one sentence that names the key and what would be right."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from syncline_proto.names import IN_WORDS, NAME_PATTERN, NAME_WORDS
from syncline_proto.words import (
    GIVEN_CHARACTERS_MAX,
    KEYS_MAX,
    finding,
    misspelt,
    sentence,
    unknown,
)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rate: float = Field(default=1.0, ge=0, le=10)
    codec: Literal["fp32", "bf16"] = "fp32"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    steps: int = Field(default=1, ge=1)
    name: str = Field(default="a", max_length=80)
    run: str = Field(default="a", pattern=NAME_PATTERN)
    digest: str = Field(default="a", pattern=r"^[a-f]+$")
    token: str = Field(default="x", max_length=5)
    inner: Inner = Inner()
    maybe: Inner | None = None
    several: list[Inner] = []
    words: list[str] = []

    @field_validator("name")
    @classmethod
    def _no_owl(cls, name: str) -> str:
        if name == "owl":
            raise ValueError("owls, of all birds, are not taken.")
        return name


class Whole(BaseModel):
    needed: int


def found_in(shape: type[BaseModel], given: Any) -> ValidationError:
    with pytest.raises(ValidationError) as wrong:
        shape.model_validate(given)
    return wrong.value


@pytest.mark.parametrize("pattern", IN_WORDS)
def test_a_pattern_is_said_in_words(pattern: str) -> None:
    class Shape(BaseModel):
        text: str = Field(pattern=pattern)

    said = sentence(found_in(Shape, {"text": "\n"}))
    assert said == f"text must be {IN_WORDS[pattern]}, not {chr(10)!r}."


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0."),
        ({"steps": "many"}, "steps must be a valid integer, not 'many'."),
        ({"inner": {"rate": 11}}, "inner.rate must be at most 10, not 11."),
        ({"inner": {"codec": "fp8"}}, "inner.codec must be 'fp32' or 'bf16', not 'fp8'."),
        ({"inner": 5}, "inner must be a group of keys, not 5."),
        ({"several": [{"rate": None}]}, "several.0.rate must be a valid number, not None."),
        ({"run": "A b"}, f"run must be {NAME_WORDS}, not 'A b'."),
        ({"digest": "x"}, "digest must be of another form, not 'x'."),
        ({"name": "owl"}, "name: owls, of all birds, are not taken."),
        (5, "it must be a group of keys, not 5."),
        ({"inner": {"rat": 1}}, "inner.rat is not a setting; did you mean inner.rate? Known here"),
        ({"maybe": {"x": 1}}, "maybe.x is not a setting. Known here: codec, rate."),
        (
            {"inner.rate": 0.5},
            'inner.rate is a key in a group: write it as {"inner": {"rate": 0.5}}.',
        ),
        (
            {"inner.codec": "fp32"},
            'inner.codec is a key in a group: write it as {"inner": {"codec": ...}}.',
        ),
        ({"step": 5, "inner": {"rate": -1}}, "step is not a setting; did you mean steps?"),
        ({"several": [{"x": 1}]}, "several.0.x is not a setting."),
        ({"words": "one"}, """words must be a valid list, such as 'words=["one"]', not 'one'."""),
    ],
)
def test_the_key_and_what_would_be_right_are_named(given: Any, says: str) -> None:
    assert sentence(found_in(Outer, given), Outer).startswith(says)


def test_a_missing_key_is_said_to_be_missing() -> None:
    assert sentence(found_in(Whole, {})) == "needed is missing."


def test_a_secret_is_never_repeated_and_a_long_value_is_cut() -> None:
    assert "hunter2-hunter2" not in sentence(found_in(Outer, {"token": "hunter2-hunter2"}))
    long = sentence(found_in(Outer, {"name": "y" * 1000}))
    assert long.startswith("name ") and len(long) < GIVEN_CHARACTERS_MAX + 80


def test_the_reader_hears_the_name_that_he_knows() -> None:
    error = found_in(Outer, {"steps": 0})
    assert sentence(error, name=lambda key: f"--{key}") == "--steps must be at least 1, not 0."
    (first,) = found_in(Whole, 5).errors()
    assert finding(first, whole="The body") == "The body must be a group of keys, not 5."


def test_only_a_few_keys_are_listed() -> None:
    many = [f"key-{number}" for number in range(KEYS_MAX + 1)]
    assert unknown("zzz", many) == "zzz is not a setting."


def test_a_variable_that_is_almost_a_setting_is_told_and_one_of_somebody_else_is_not() -> None:
    given = ["P_STEP", "P_STEPS", "P_INER", "P_INNER_SERVICE_PORT", "STEP", "P_", "P_MANE", "P_TOK"]
    assert misspelt(given, "P_", Outer) == [
        "P_INER is not a setting; did you mean P_INNER?",
        "P_MANE is not a setting; did you mean P_NAME?",
        "P_STEP is not a setting; did you mean P_STEPS?",
    ]
