"""From trained parameters to a folder that ``transformers`` loads, tokenizer included.

``export_model`` takes tensors from anywhere; ``export_run`` takes a run's merged parameters from
its sync services, all of one revision, without disturbing anybody.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from syncline.control import ControlClient
from syncline.data import Tokenizer, load_tokenizer
from syncline.data.errors import DataError
from syncline.layout import whole
from syncline.train.config import DataSection, JobConfig
from syncline.train.folder import prepared_folder
from syncline.train.model import build_config, without_bars
from syncline.train.observe import newest_cut
from syncline_proto.errors import ConfigError, LayoutMismatch

CONTROL_TIMEOUT_S = 30.0

State = dict[str, torch.Tensor]
"""Canonical names to whole fp32 tensors on the CPU; tied tensors come once."""


def full_state(model: nn.Module) -> State:
    """All parameters, gathered from the ranks. All ranks must call it; each gets everything."""
    return {name: whole(parameter).cpu() for name, parameter in model.named_parameters()}


def export_model(state: State, job: JobConfig, out: str | Path) -> Path:
    """Write the model and its tokenizer to the folder ``out``.

    Raises:
        LayoutMismatch: the tensors are not those of the job's model.
        DataError: the job's tokenizer cannot be found on this machine.
        ConfigError: the folder cannot be written.
    """
    out = Path(out)
    tokenizer = tokenizer_of(job.data)
    config = build_config(job.model, tokenizer.vocab_size, tokenizer.eos_id)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _fill(model, state)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with without_bars():
            model.save_pretrained(out)
        tokenizer.save(out)
    except OSError as error:
        raise ConfigError(f"cannot export to {out}: {error.strerror or error}.") from None
    return out


def tokenizer_of(data: DataSection) -> Tokenizer:
    """The tokenizer that the job's data was, or would be, made with.

    Raises:
        DataError: it is in a folder that is not on this machine.
    """
    if data.path is None and data.tokenizer == "byte":
        return load_tokenizer("byte")
    try:
        return load_tokenizer(prepared_folder(data))
    except DataError as error:
        raise DataError(
            f"{error.message}; export where the run's data is, or name its folder"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was exported, and where to."""

    folder: Path
    run: str
    revision: int
    committed_tokens: int
    parameters: int


def export_run(
    run: str,
    control: str,
    out: str | Path,
    *,
    token: str | None = None,
    data: str | Path | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a run's merged model, as it is now, to the folder ``out``; the run goes on meanwhile.

    Args:
        control: address of the control plane.
        data: a prepared folder whose tokenizer to take, where the run's own is not at hand.
        overwrite: replace a model that is in the folder.

    Raises:
        RunUnknown, RunConflict: there is no such run, or it has no parameters yet.
        ConfigError: the folder holds a model already, or the run was not made by the trainer, so
            its model is not known.
        Unreachable: the control plane or a sync service does not answer.
        LayoutMismatch, DataError, ConfigError: as ``export_model``.
    """
    if not overwrite and (Path(out) / "config.json").exists():
        raise ConfigError(
            f"The folder {out} holds a model already; choose another, or --overwrite."
        )
    with closing(ControlClient(control, token, timeout_s=CONTROL_TIMEOUT_S)) as client:
        view = client.run(run)
        if not view.job:
            raise ConfigError(
                f"the run {run} names no model; it was not started by the trainer. Save the model "
                "from your own script instead."
            )
        job = JobConfig.from_job(view.job, f"the job of run {run}")
        if data is not None:
            here = {"path": Path(data), "source": None}
            job = job.model_copy(update={"data": job.data.model_copy(update=here)})
        cut = newest_cut(view, client, token)
    return Exported(
        folder=export_model(cut.tensors, job, out),
        run=run,
        revision=cut.revision,
        committed_tokens=cut.committed_tokens,
        parameters=sum(tensor.numel() for tensor in cut.tensors.values()),
    )


def portable(job: JobConfig, config: PreTrainedConfig) -> JobConfig:
    """The job with nothing left out that another machine could not know: for the run's record."""
    unsaid = {"transformers_version", "architectures", "dtype", "use_cache"}
    said = {key: value for key, value in config.to_diff_dict().items() if key not in unsaid}
    model = job.model.model_copy(
        update={"config": {**said, "model_type": config.model_type}, "path": None}
    )
    path = job.data.path and job.data.path.resolve()
    return job.model_copy(
        update={"model": model, "data": job.data.model_copy(update={"path": path})}
    )


@torch.no_grad()
def _fill(model: nn.Module, state: State) -> None:
    parameters = dict(model.named_parameters())
    for name in parameters.keys() | state.keys():
        here, given = parameters.get(name), state.get(name)
        if here is None or given is None or here.shape != given.shape:
            shapes = [None if t is None else list(t.shape) for t in (here, given)]
            raise LayoutMismatch(
                f"{name} has shape {shapes[0]} in the job's model and {shapes[1]} in the trained "
                "parameters (null: it is missing); export with the job that trained them."
            )
        here.copy_(given)
