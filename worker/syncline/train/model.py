"""Any causal language model of transformers, built from a job.

Parameters are fp32 and equal on all ranks from the seed on; ``sharding`` cuts them over the ranks.
Nothing here is downloaded.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from syncline.train.config import JobConfig
from syncline.train.folder import Vocabulary, vocabulary_of
from syncline.train.sections import ModelSection
from syncline_proto.errors import ConfigError, FileMissing

log = structlog.get_logger()

SAID_MAX = 240
"""Letters of what transformers says; it likes to list every model there is."""

HEADS = "not a multiple of the number of attention heads"
"""What it says of a hidden size, and not what to do."""

ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function")
"""What models of transformers call the name of their activation."""

DTYPE_KEYS = ("dtype", "torch_dtype")
DTYPES = ("bfloat16", "float16", "float32", "float64")
"""What the weights of a model may be saved as; they are trained in fp32 whatever it is."""

ROPE_GROUPS = ("rope_parameters", "rope_scaling")

NAMES_MAX = 40
"""More names than this are not listed."""

OLDER_KEYS = frozenset({"rope_theta", "rope_scaling", "torch_dtype"})
"""Names that transformers still translates, though no configuration lists them."""


def build_config(section: ModelSection, vocabulary: Vocabulary) -> PreTrainedConfig:
    """The transformers configuration of a job's model.

    The vocabulary's size and special tokens are the tokenizer's where the job is silent.

    Raises:
        FileMissing: ``path`` holds no config.json.
        ConfigError: transformers knows no such model or key, or refuses a value.
    """
    if section.path is not None:
        if not (section.path / "config.json").is_file():
            raise FileMissing(f"model.path: {section.path} holds no config.json.")
        return _accepted("model.path", AutoConfig.from_pretrained, section.path)
    given = dict(section.config or {})
    model_type = given.pop("model_type")
    _check_type(model_type)
    _check_dtype(given)
    _check_theta(given)
    _refuse_unknown(_accepted("model.config", AutoConfig.for_model, model_type), given)
    # transformers would tell of special tokens out of range, and not why.
    _check_vocabulary(given.get("vocab_size"), vocabulary.vocab_size)
    settings = {
        "vocab_size": vocabulary.vocab_size,
        "bos_token_id": vocabulary.eos_id,
        "eos_token_id": vocabulary.eos_id,
        "pad_token_id": None,
    }
    return _accepted("model.config", AutoConfig.for_model, model_type, **(settings | given))


def check_model(job: JobConfig, vocabulary: Vocabulary | None = None) -> int | None:
    """Refuse a model that cannot be built, in a moment: before data is prepared or anybody joins.

    It is built on torch's meta device, where tensors have shapes and take no memory. Returns how
    many trained parameters it has; None where only numbers would tell. ``vocabulary`` is the
    tokenizer's, as ``vocabulary_of`` gives it; None: that of the job's data.

    Raises:
        FileMissing, ConfigError: as ``build_model``.
        DataError: the tokenizer that the model must fit cannot be read.
    """
    config = _fitting_config(job, vocabulary or vocabulary_of(job.data))
    try:
        with torch.device("meta"):
            model = _instance(config, None, job.model.attention)
    except ConfigError as refused:
        # A model that looks at its numbers while it is built cannot be judged without them.
        if not isinstance(refused.__cause__, NotImplementedError):
            raise
        return None
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def build_model(job: JobConfig, vocabulary: Vocabulary) -> PreTrainedModel:
    """The job's model in fp32 on the CPU, ready to train.

    Raises:
        FileMissing, ConfigError: as ``build_config``; also when the tokenizer has more ids than
            the model, sequences are longer than it takes, or it lacks a setting's code.
    """
    config = _fitting_config(job, vocabulary)
    model = first_model(job, config)
    attention = model.config._attn_implementation
    log.info("model.built", model=type(model).__name__, attention=attention)
    # Keys and values of earlier tokens are for generating; in training they are only memory.
    model.config.use_cache = False
    if job.train.activation_checkpointing:
        _checkpoint_blocks(model)
    return model.train()


def first_model(job: JobConfig, config: PreTrainedConfig) -> PreTrainedModel:
    """The model with which training begins: random from ``train.seed``, or a folder's weights.

    Raises:
        ConfigError: transformers refuses to build it.
    """
    with torch.random.fork_rng(devices=[]), without_bars():
        torch.manual_seed(job.train.seed)
        return _instance(config, job.model.path, job.model.attention)


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers' own progress bars off the screen; ours says enough."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _checkpoint_blocks(model: PreTrainedModel) -> None:
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"train.activation_checkpointing: {type(model).__name__} does not support it."
        )
    # transformers 5.23 renamed it, with the re-entrant form that FSDP2 cannot bear gone by default.
    enable = getattr(model, "activation_checkpointing_enable", None)
    if enable is not None:
        enable()
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _instance(config: PreTrainedConfig, folder: Path | None, attention: str) -> PreTrainedModel:
    # Given none, transformers takes sdpa where the architecture has it, and eager where not.
    asked = "eager" if attention == "eager" else None
    options: dict[str, Any] = {"attn_implementation": asked, "dtype": torch.float32}
    if folder is not None and any(folder.glob("*.safetensors")):
        model = _accepted(
            "model.path", AutoModelForCausalLM.from_pretrained, folder,
            config=config, local_files_only=True, use_safetensors=True, **options,
        )  # fmt: skip
    else:
        model = _accepted("model", AutoModelForCausalLM.from_config, config, **options)
    # Asked for nothing, transformers takes the best that the architecture has.
    if attention == "sdpa" and model.get_correct_attn_implementation(None) != "sdpa":
        raise ConfigError(
            f"model.attention: {type(model).__name__} has no sdpa, only eager attention; "
            'leave it out, or set it to "eager".'
        )
    return model


def _fitting_config(job: JobConfig, vocabulary: Vocabulary) -> PreTrainedConfig:
    """The configuration of a job's model, if its parts fit one another, tokenizer and data."""
    config = build_config(job.model, vocabulary)
    _check_activations(config)
    _check_heads(config)
    _check_fit(config, vocabulary.vocab_size, job.data.sequence_length)
    return config


def _check_type(model_type: str) -> None:
    """transformers would list every model there is."""
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        raise _no_such("causal language model", "model_type", model_type, known)


def _check_dtype(given: dict[str, Any]) -> None:
    """transformers takes whatever torch has under this name, and fails where that is nothing."""
    for key in DTYPE_KEYS:
        if key in given and given[key] not in DTYPES:
            raise _no_such("dtype", key, given[key], DTYPES)


def _check_theta(given: dict[str, Any]) -> None:
    """A base that is no number fails deep inside, where nobody knows its name."""
    groups = [("", given)] + [(f"{group}.", given.get(group)) for group in ROPE_GROUPS]
    for where, group in groups:
        theta = group.get("rope_theta") if isinstance(group, dict) else None
        is_number = isinstance(theta, int | float) and not isinstance(theta, bool)
        if theta is not None and not (is_number and 0 < theta <= sys.float_info.max):
            raise ConfigError(
                f"model.config.{where}rope_theta must be a number above 0, not {theta!r}."
            )


def _no_such(what: str, key: str, given: object, known: Collection[str]) -> ConfigError:
    near = difflib.get_close_matches(str(given), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    if not near and len(known) <= NAMES_MAX:
        hint = f"; there are {', '.join(sorted(known))}."
    return ConfigError(f"model.config.{key}: there is no {what} {given!r}{hint}")


def _check_activations(config: PreTrainedConfig) -> None:
    """transformers looks for an activation as it builds, and then says nothing but its name."""
    for key in ACTIVATION_KEYS:
        name = getattr(config, key, None)
        if isinstance(name, str) and name not in ACT2FN:
            raise _no_such("activation", key, name, ACT2FN)


def _check_heads(config: PreTrainedConfig) -> None:
    """A model with other numbers can be built, and fails in its first forward pass."""
    heads = getattr(config, "num_attention_heads", None)
    groups = getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(groups, int) and (groups < 1 or heads % groups):
        raise ConfigError(
            f"model.config: num_attention_heads ({heads}) is not a multiple of "
            f"num_key_value_heads ({groups}); set the latter to a divisor of it."
        )


def _check_fit(config: PreTrainedConfig, vocab_size: int, sequence_length: int) -> None:
    _check_vocabulary(config.vocab_size, vocab_size)
    longest = getattr(config, "max_position_embeddings", None)
    # XLNet says -1: no limit.
    if isinstance(longest, int) and 0 < longest < sequence_length:
        raise ConfigError(
            f"data.sequence_length {sequence_length} is more than the {longest} positions of the "
            "model; shorten it, or raise model.config.max_position_embeddings."
        )


def _check_vocabulary(ids: object, vocab_size: int) -> None:
    if isinstance(ids, int) and ids < vocab_size:
        raise ConfigError(
            f"the model has {ids} token ids and the tokenizer {vocab_size}; "
            "leave model.config.vocab_size out, or prepare the data with the model's tokenizer."
        )


def _refuse_unknown(plain: PreTrainedConfig, given: dict[str, Any]) -> None:
    """transformers keeps whatever it is given; a misspelt key would be lost without a word."""
    known = {*plain.to_dict(), *plain.attribute_map}
    for key in given:
        if key not in known and key not in OLDER_KEYS:
            raise ConfigError(
                f"model.config.{key} is not a setting of {plain.model_type}; "
                f"it takes {', '.join(sorted(known))}."
            )


def _accepted(what: str, build: Any, *args: Any, **kwargs: Any) -> Any:
    """Call transformers; what it refuses becomes a ConfigError of one line."""
    try:
        return build(*args, **kwargs)
    except (
        StrictDataclassError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        ImportError,
        KeyError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, StrictDataclassError):
            said = said.rpartition("Error: ")[2]  # before it, the names of its own functions
        if HEADS in said:
            said = f"{said.rstrip('.')}; set num_attention_heads to a divisor of it."
        raise ConfigError(f"{what}: {said[:SAID_MAX]}") from error
