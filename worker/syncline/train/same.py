"""Whether a replica's model is that of the run's record, which is what export builds.

The layout tells shapes apart, and only once somebody has trained; this tells what else makes a
model, such as its heads, before anybody has.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from syncline.train.config import JobConfig
from syncline.train.folder import Vocabulary
from syncline.train.model import build_config
from syncline.train.sections import ModelSection
from syncline_proto.errors import ConfigError, LayoutMismatch

UNSAID = frozenset({"transformers_version", "architectures", "dtype", "use_cache", "_name_or_path"})
"""What a configuration says of its file and of its use, and not of the model."""

NAMED_MAX = 5
"""Of two models that differ in more settings, these are enough to tell."""


def check_same_model(
    job: JobConfig, vocabulary: Vocabulary, run: str, record: dict[str, Any]
) -> None:
    """Compare the job's model with that of the record of a run that is there.

    ``vocabulary`` is what a configuration takes from the tokenizer where it is silent.

    Both are built here, so that what another version of transformers wrote is read alike. A record
    of no trainer, or one that cannot be built here, says nothing.

    Raises:
        LayoutMismatch: it is another; the settings that differ are named.
    """
    try:
        theirs = JobConfig.from_job(record)
        if job.model.factory is not None or theirs.model.factory is not None:
            _check_same_factory(job.model, theirs.model, run)
            return
        there = _settings_of(build_config(theirs.model, vocabulary))
    except ConfigError:
        return
    here = _settings_of(build_config(job.model, vocabulary))
    differ = [key for key in sorted(here.keys() | there.keys()) if here.get(key) != there.get(key)]
    if "model_type" in differ:
        differ = ["model_type"]  # nearly all else follows from it
    if differ:
        told = "; ".join(
            f"model.config.{key}: the run has {there.get(key)}, here {here.get(key)}"
            for key in differ[:NAMED_MAX]
        )
        raise LayoutMismatch(
            f"This model is not the one of run {run} ({told}); train the run's model, or give the "
            "run another name."
        )


def _check_same_factory(here: ModelSection, there: ModelSection, run: str) -> None:
    """Nothing is known of what a factory makes; so it must be the same, asked for the same."""
    if (here.factory, here.arguments) != (there.factory, there.arguments):
        raise LayoutMismatch(
            f"This model is not the one of run {run} (model.factory: the run has "
            f"{there.factory} with {there.arguments}, here {here.factory} with {here.arguments}); "
            "train the run's model, or give the run another name."
        )


def _settings_of(config: PreTrainedConfig) -> dict[str, Any]:
    """What a configuration says of the model itself."""
    said = config.to_dict()
    # Which ids are special is the tokenizer's to say: no tensor depends on it.
    return {key: said[key] for key in said if key not in UNSAID and not key.endswith("_token_id")}
