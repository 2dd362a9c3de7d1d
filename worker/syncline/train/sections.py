"""The sections of a job: what each takes, and which of its settings contradict one another.

What contradicts across sections is the whole job's to say (``config``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from syncline.settings import AnchorDevice
from syncline_proto.names import NAME_PATTERN
from syncline_proto.section import Section
from syncline_proto.settings import RunSettings


def _is_factory(text: str) -> str:
    module, _, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError('write it as module:function, such as "my_pkg.models:make"')
    return text


COUNTS = frozenset(
    {
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings", "vocab_size"),
        *("n_embd", "n_layer", "n_head", "n_positions"),
    }
)
"""Sizes of a model, as transformers calls them; it does not mind all of them being 0."""

Factory = Annotated[str, AfterValidator(_is_factory)]
"""``module:function``, of the user's own."""
Precision = Literal["fp32", "bf16"]
ScheduleKind = Literal["cosine", "wsd", "constant"]


class RunSection(RunSettings):
    """The run's name, and the settings that all its replicas share."""

    name: str = Field(pattern=NAME_PATTERN)

    @property
    def settings(self) -> RunSettings:
        given = self.model_dump(exclude={"name"}, exclude_unset=True)
        return RunSettings.model_validate(given)


class ModelSection(Section):
    """Any causal language model that transformers knows, or that a function of the user's makes."""

    config: dict[str, Any] | None = None
    """A transformers configuration: ``model_type`` and what differs from that type's defaults."""
    path: Path | None = None
    """A folder with a config.json and, to start from them, safetensors weights."""
    factory: Factory | None = None
    """``module:function`` that returns a torch.nn.Module; called with ``arguments`` by name."""
    arguments: dict[str, Any] = {}
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    """How attention is computed; auto: PyTorch's kernels (sdpa) where the model has them."""

    @field_validator("config")
    @classmethod
    def _sizes_are_sizes(cls, config: dict[str, Any] | None) -> dict[str, Any] | None:
        for key, value in (config or {}).items():
            if key in COUNTS and isinstance(value, int) and value < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")
        return config

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if [self.config, self.path, self.factory].count(None) != 2:
            raise ValueError("give one of config, path and factory")
        if self.arguments and self.factory is None:
            raise ValueError("arguments are a factory's")
        if self.factory is not None and self.attention != "auto":
            raise ValueError("attention is for models of transformers, not of a factory")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError('config needs a model_type, such as "llama"')
        return self


class DataSection(Section):
    """What is read: a prepared folder, sources that are prepared on first use, or a factory's."""

    path: Path | None = None
    url: str | None = Field(default=None, min_length=1, max_length=2048)
    """Prepared data on shared or object storage, which is copied to ``cache`` and read there."""
    source: list[str] | None = None
    """Text, JSON lines or Parquet files, folders or globs of such, ``builtin``, or ``hf:NAME``."""
    factory: Factory | None = None
    """``module:function`` that returns a dataset; called with the split and the length."""
    arguments: dict[str, Any] = {}
    tokenizer: str = "byte"
    """For sources: ``byte``, ``bpe:VOCAB``, or a tokenizer.json; a path brings its own."""
    text_field: str = "text"
    held_out_fraction: float = Field(default=0.05, gt=0, lt=1)
    cache: Path | None = None
    """Where sources are prepared, and copies lie; None: the user's cache folder."""
    sequence_length: int = Field(default=1024, ge=2, le=1 << 20)
    seed: int = Field(default=0, ge=0)
    leased: bool = True
    """The control plane leases each sequence to one replica; false where each replica has data of
    its own, or for a slice of each epoch that is settled when it joins."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if [self.path, self.url, self.source, self.factory].count(None) != 3:
            raise ValueError("give one of path (a prepared folder), url, source and factory")
        if self.arguments and self.factory is None:
            raise ValueError("arguments are a factory's")
        return self


class TrainSection(Section):
    """One inner step, as each rank takes it."""

    micro_batch: int = Field(default=8, ge=1)
    """Sequences of one forward pass, on each rank."""
    accumulate: int = Field(default=1, ge=1)
    """Forward passes to one inner step."""
    seed: int = Field(default=0, ge=0)
    """Of the first parameters and of dropout."""
    precision: Precision = "fp32"
    """What the forward and backward passes compute in; parameters are held in fp32."""
    clip: float | None = Field(default=1.0, gt=0)
    """Upper bound of the gradient's global norm; None: none."""
    activation_checkpointing: bool = False
    compile: bool = False
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of each rank; None: what PyTorch takes."""
    reshard_after_forward: bool | int = True
    """Free gathered parameters between forward and backward (FSDP2); n: n ranks share them then."""
    anchor_device: AnchorDevice | None = None
    """Where anchors lie; None: by the environment, else on the CPU."""

    @field_validator("reshard_after_forward", mode="before")
    @classmethod
    def _true_or_ranks(cls, value: object) -> object:
        if not isinstance(value, int) or (value < 2 and not isinstance(value, bool)):
            raise ValueError("write true, false, or a number of ranks, 2 or more")
        return value


class OptimizerSection(Section):
    """The inner optimizer, and its learning rate over the run's tokens."""

    name: Literal["adamw", "muon", "agd", "wsam"] = "adamw"
    lr: float = Field(default=3e-4, gt=0, le=10)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Of matrices; norms, biases and other vectors are never decayed."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's."""
    delta: float = Field(default=1e-14, gt=0)
    """Where AGD changes from momentum to adaptive steps."""
    rho: float = Field(default=0.05, ge=0)
    """How far away WSAM takes its second gradient."""
    gamma: float = Field(default=0.9, ge=0, lt=1)
    """The weight of sharpness in WSAM; 0.5 is SAM."""
    schedule: ScheduleKind = "cosine"
    warmup_tokens: int = Field(default=0, ge=0)
    decay_share: float = Field(default=0.2, gt=0, le=1)
    """Of the token budget, at its end: where wsd decays."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """The last learning rate, as a share of ``lr``."""
    join_ramp_steps: int | None = Field(default=None, ge=0)
    """First steps of a joiner, over which its learning rate grows; None: ``sync_every`` / 10."""

    @model_validator(mode="after")
    def _betas_below_one(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas: each must be at least 0 and below 1")
        return self


class EvaluateSection(Section):
    """Held-out loss, at the start, now and then, and at the end."""

    every_rounds: int = Field(default=0, ge=0)
    """Counted in revisions, when the replica takes part in a run; 0: not in between."""
    every_steps: int = Field(default=0, ge=0)
    """Counted in inner steps, when it trains alone; 0: not in between."""
    sequences: int = Field(default=64, ge=1)


class CheckpointSection(Section):
    """The replica's inner state on its own disk; parameters of a run are the service's."""

    folder: Path | None = None
    every_rounds: int = Field(default=0, ge=0)
    """0: only when the replica leaves."""
    every_steps: int = Field(default=0, ge=0)
    keep: int = Field(default=2, ge=1)


class LogSection(Section):
    """What is told while training."""

    tensorboard: Path | None = None
    wandb: str | None = Field(default=None, min_length=1)
    """A project of Weights & Biases."""
    every_steps: int = Field(default=10, ge=1)
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Where rank 0 serves its figures to Prometheus; 0: nowhere."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    peak_flops: float | None = Field(default=None, gt=0)
    """Of each device, in a second; None: as its name is known."""


class ExportSection(Section):
    """Where the trained model goes, as a folder that transformers loads."""

    folder: Path | None = None
    """Written at the end of training alone, and by ``syncline up`` at the end of a run."""


class UpSection(Section):
    """What ``syncline up`` starts on this machine."""

    replicas: int = Field(default=2, ge=1, le=1024)
    ranks: int = Field(default=1, ge=1, le=1024)
    """Of each replica."""
    shards: int = Field(default=1, ge=1, le=64)
    """Sync services that share the fragments, each a process."""
    control_port: int = Field(default=0, ge=0, le=65535)
    """0: any free port."""
    sync_port: int = Field(default=0, ge=0, le=65535)
    page: bool = True
    """Tell the address of the live page."""

    @model_validator(mode="after")
    def _each_port_once(self) -> Self:
        if self.control_port and self.control_port == self.sync_port:
            raise ValueError(
                f"control_port and sync_port are both {self.sync_port}, and each service needs a "
                "port of its own; choose another for one of them"
            )
        return self
