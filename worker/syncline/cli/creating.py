"""What a run is created from, as it is typed: a job's file, or settings alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from syncline.data.errors import DataError
from syncline.interrupts import Deferred
from syncline.settings import checked_name
from syncline.train.config import JobConfig
from syncline.train.folder import Vocabulary, vocabulary_of
from syncline.train.reading import apply_overrides
from syncline.uncollected import uncollected
from syncline_proto.errors import ConfigError, FileMissing
from syncline_proto.names import valid_name
from syncline_proto.rest import RunCreate
from syncline_proto.settings import RunSettings
from syncline_proto.words import sentence

ANY_VOCABULARY = Vocabulary(1, 0)
"""Of a tokenizer that every model fits."""


def of_job(job: str, name: str | None, given: list[str], say: Callable[[str], None]) -> RunCreate:
    """A run of the job in a file, with ``given`` overrides.

    ``say`` is told what takes long, and what cannot be checked on this machine.

    Raises:
        FileMissing: there is no such file.
        ConfigError: it is no job, or its model cannot be built.
    """
    try:
        made = JobConfig.load(job, [*given, *([f"run.name={name}"] if name else [])])
    except FileMissing as error:
        if name is not None or not valid_name(job):
            raise
        raise FileMissing(
            f"{error.message.rstrip('.')}, or create a run without a job by --name {job}."
        ) from None
    _check_model(made, say)
    return RunCreate(name=made.run.name, settings=made.settings, job=made.to_job())


def _check_model(job: JobConfig, say: Callable[[str], None]) -> None:
    """Refuse a model that nobody could train or export; its files may be on other machines.

    Raises:
        ConfigError: it cannot be built.
    """
    if job.model.factory is not None:
        say(f"The model is not checked here: {job.model.factory} makes it where it is trained.")
        return
    say("Checking the model ...")
    with Deferred(), uncollected():
        from syncline.train.model import check_model  # torch takes seconds to import

    vocabulary = ANY_VOCABULARY
    try:
        vocabulary = vocabulary_of(job.data)
    except DataError as error:
        say(f"Whether the model fits its tokenizer is not checked here: {error.message}")
    try:
        check_model(job, vocabulary)
    except FileMissing as error:
        say(f"The model is not checked here: {error.message}")


def of_settings(name: str | None, given: list[str]) -> RunCreate:
    """A run without a job.

    Raises:
        ConfigError: it has no name, or a setting is unknown or out of range.
    """
    if name is None:
        raise ConfigError("A run has a name: give a job's file, or --name.")
    try:
        settings = RunSettings.model_validate(values_of(given))
    except ValidationError as error:
        raise ConfigError(f"--set: {sentence(error, RunSettings)}") from None
    return RunCreate(name=checked_name("run", name), settings=settings)


def values_of(given: list[str], flag: str = "--set ") -> dict[str, Any]:
    """Settings of a run by KEY=VALUE; a job's file has them in [run], and so run. may stand first.

    ``flag`` stands before each where it is typed.

    Raises:
        ConfigError: one is not written so, or is of a job.
    """
    bare = [one.removeprefix("run.") for one in given]
    for one in bare:
        section = one.partition("=")[0].partition(".")[0].strip()
        if section in JobConfig.model_fields and section not in RunSettings.model_fields:
            raise ConfigError(
                f"{flag}{one}: {section} is a job's; here only the run's settings can be set, such "
                "as sync_every=8."
            )
    return apply_overrides({}, bare, flag=flag, form="KEY=VALUE, such as sync_every=8")
