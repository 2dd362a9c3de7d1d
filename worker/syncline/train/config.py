"""What a job is: the sections of its TOML file, checked before anything is built.

Reading a job touches the file and nothing else. An unknown key, a value of the wrong type or two
settings that contradict one another end here, in one sentence that names the file, the key and
what is allowed. Paths in a job are taken from the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator

from syncline.train.reading import apply_overrides, is_overridden, read_toml
from syncline.train.sections import (
    CheckpointSection,
    DataSection,
    EvaluateSection,
    ExportSection,
    LogSection,
    ModelSection,
    OptimizerSection,
    RunSection,
    TrainSection,
    UpSection,
)
from syncline_proto.errors import ConfigError
from syncline_proto.section import Section
from syncline_proto.settings import RunSettings
from syncline_proto.words import finding, first


class JobConfig(Section):
    """A whole job."""

    run: RunSection
    model: ModelSection
    data: DataSection
    train: TrainSection = TrainSection()
    optimizer: OptimizerSection = OptimizerSection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()
    export: ExportSection = ExportSection()
    up: UpSection = UpSection()

    @model_validator(mode="after")
    def _keeps_its_model(self) -> Self:
        if self.export.folder is not None and self.starts_from(self.export.folder):
            raise ValueError("export.folder is model.path, which it would replace; name another")
        return self

    @model_validator(mode="after")
    def _knows_its_vocabulary(self) -> Self:
        config = self.model.config
        if self.data.factory is not None and config is not None and "vocab_size" not in config:
            raise ValueError("data.factory brings no tokenizer: give model.config a vocab_size")
        return self

    @model_validator(mode="after")
    def _checkpoints_what_it_knows(self) -> Self:
        if self.model.factory is not None and self.train.activation_checkpointing:
            raise ValueError(
                "train.activation_checkpointing is for models of transformers; let model.factory "
                "do it"
            )
        return self

    @model_validator(mode="after")
    def _averages_every_gradient(self) -> Self:
        if self.optimizer.name == "wsam" and self.run.warmup_steps:
            raise ValueError(
                'optimizer.name "wsam" takes two gradients a step, and run.warmup_steps averages '
                "one; set it to 0, or take another optimizer"
            )
        return self

    @model_validator(mode="after")
    def _schedule_has_an_end(self) -> Self:
        budget, optimizer = self.run.token_budget, self.optimizer
        if budget is None and optimizer.schedule != "constant":
            raise ValueError(
                f'optimizer.schedule "{optimizer.schedule}" needs an end: set run.token_budget, '
                'or use "constant"'
            )
        if budget is not None and optimizer.warmup_tokens >= budget:
            raise ValueError(
                f"optimizer.warmup_tokens ({optimizer.warmup_tokens}) must be below "
                f"run.token_budget ({budget})"
            )
        return self

    def starts_from(self, folder: Path) -> bool:
        """Whether the model's first parameters are read from this folder."""
        path = self.model.path
        return path is not None and os.path.realpath(path) == os.path.realpath(folder)

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] | None = None) -> JobConfig:
        """Read a job's file, with ``section.key=value`` overrides on top.

        Raises:
            FileMissing: there is no such file.
            ConfigError: it is no TOML, or a setting is unknown, missing or wrong.
        """
        given = overrides or []
        values = apply_overrides(read_toml(Path(path)), given)
        brought = partial(cls._brought_by, Path(path), given)
        return cls.checked(values, str(path), given, brought)

    @classmethod
    def from_job(cls, job: dict[str, Any], origin: str = "the run's job") -> JobConfig:
        """Read back what ``to_job`` gave.

        Raises:
            ConfigError: the run was not made by this trainer, or by a newer one.
        """
        return cls.checked(job, origin)

    @classmethod
    def checked(
        cls,
        values: dict[str, Any],
        origin: str,
        overrides: Sequence[str] = (),
        brought: Callable[[], str | None] = lambda: None,
    ) -> JobConfig:
        """Build a job of plain values.

        ``brought`` finds the override, as it was typed, that contradicts the rest.

        Raises:
            ConfigError: a setting is unknown, missing or wrong. The sentence begins with
                ``origin``, or with ``--set`` where an override is wrong.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            found = first(error)
            unknown = found["type"] == "extra_forbidden"
            is_set = is_overridden(found["loc"], overrides, is_unknown=unknown)
            who = "--set" if is_set else brought() or origin
            raise ConfigError(f"{who}: {finding(found, cls)}") from None

    @classmethod
    def _brought_by(cls, path: Path, overrides: list[str]) -> str | None:
        """The last override without which the file would do; None: it is not theirs."""
        for at in reversed(range(len(overrides))):
            without = [*overrides[:at], *overrides[at + 1 :]]
            with suppress(ValidationError):
                cls.model_validate(apply_overrides(read_toml(path), without))
                return f"--set {overrides[at]}"
        return None

    def to_job(self) -> dict[str, Any]:
        """The job as plain values, ready for JSON: what the control plane keeps with the run."""
        return self.model_dump(mode="json")

    @property
    def settings(self) -> RunSettings:
        """What the run's replicas and services must agree on."""
        return self.run.settings
