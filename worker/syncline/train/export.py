"""From trained parameters to a folder that ``transformers`` loads, tokenizer included.

A run of a user's own loop names no model: of that the folder has the parameters, and no more.

``export_model`` takes tensors from anywhere; ``export_run`` takes a run's merged parameters from
its sync services, all of one revision, without disturbing anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from syncline.control import ControlClient
from syncline.data import Tokenizer, load_tokenizer
from syncline.data.cache import tokenizer_at
from syncline.data.errors import DataError
from syncline.layout import frozen_tensors, persistent_buffers, tensors_sha256, whole
from syncline.train.config import JobConfig
from syncline.train.exported import Origin, check_free
from syncline.train.exporting import exporting
from syncline.train.folder import NO_TOKENIZER, Vocabulary, cache_of, prepared_folder
from syncline.train.model import build_config, first_model, without_bars
from syncline.train.observe import newest_cut
from syncline.train.plain import write_parameters
from syncline.train.same import UNSAID
from syncline.train.sections import DataSection, ModelSection
from syncline_proto.errors import ConfigError, LayoutMismatch

CONTROL_TIMEOUT_S = 30.0

State = dict[str, torch.Tensor]
"""Canonical names to whole fp32 tensors on the CPU; tied tensors come once."""

NONE_LACKING = tensors_sha256({})
"""The hash to ask for where the state holds all, what is frozen too, as ``full_state`` does."""


def full_state(model: nn.Module) -> State:
    """All parameters and persistent buffers. All ranks must call it; each gets everything."""
    held = dict(model.named_parameters()) | persistent_buffers(model)
    return {name: whole(tensor).cpu() for name, tensor in held.items()}


def export_model(
    state: State, job: JobConfig, out: str | Path, *, frozen_sha256: str, origin: Origin
) -> Path:
    """Write the model and its tokenizer to the folder ``out``, in place of what it holds.

    Args:
        frozen_sha256: what the frozen tensors that ``state`` lacks must hash to, as those of a run
            do. They are taken from the model with which the job begins.
        origin: whose model it is, for the folder's signature.

    Raises:
        LayoutMismatch: the tensors are not those of the job's model.
        DataError: the job's tokenizer cannot be found on this machine.
        ConfigError: the folder cannot be written.
    """
    out = Path(out)
    tokenizer, vocabulary = tokenizer_of(job.data), NO_TOKENIZER
    if tokenizer is not None:
        vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.eos_id)
    config = build_config(job.model, vocabulary)
    model = first_model(job, config)
    kept = {name: t for name, t in frozen_tensors(model).items() if name not in state}
    _fill(model, state, kept)
    if tensors_sha256(kept) != frozen_sha256:
        raise LayoutMismatch(
            "the model that the job begins with has other frozen tensors or buffers than the run; "
            "export where model.path and the versions of PyTorch and transformers are the run's."
        )
    with exporting(out, origin):
        with without_bars():
            model.save_pretrained(out)
        if tokenizer is not None:
            tokenizer.save(out)
    return out


def tokenizer_of(data: DataSection) -> Tokenizer | None:
    """The tokenizer that the job's data was, or would be, made with; of a factory's data none.

    Raises:
        DataError: it is in a folder that is not on this machine.
    """
    if data.factory is not None:
        return None
    if data.source is not None and data.tokenizer == "byte":
        return load_tokenizer("byte")
    try:
        if data.url is not None:
            return load_tokenizer(tokenizer_at(data.url, cache_of(data)))
        return load_tokenizer(prepared_folder(data))
    except DataError as error:
        raise DataError(
            f"{error.message.rstrip('.')}; export where the run's data is, or name its folder."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was exported, and where to."""

    folder: Path
    run: str
    revision: int
    committed_tokens: int
    parameters: int
    model: Path
    """What to load: the folder for ``transformers``, or in it a file of the parameters alone."""


def export_run(
    run: str,
    control: str,
    out: str | Path,
    *,
    token: str | None = None,
    data: str | Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write a run's merged model, as it is now, to the folder ``out``; the run goes on meanwhile.

    Args:
        control: address of the control plane.
        data: a prepared folder whose tokenizer to take, where the run's own is not at hand.
        overwrite: replace a model that is in the folder.
        say: is told what begins, before each long part.

    Raises:
        RunUnknown, RunConflict: there is no such run, or it has no parameters yet.
        ConfigError: the folder holds a model already.
        Unreachable: the control plane or a sync service does not answer.
        LayoutMismatch, DataError, ConfigError: as ``export_model``, and ``recorded_job``.
    """
    if not overwrite:
        check_free(Path(out), "choose another, or --overwrite")
    with closing(ControlClient(control, token, timeout_s=CONTROL_TIMEOUT_S)) as client:
        view = client.run(run)
        job = recorded_job(view.job, run, data)
        say(f"Fetching the newest revision of {run} ...")
        cut = newest_cut(view, client, token)
    if job is not None and job.model.factory is not None:
        say(f"{job.model.factory} makes the model: its parameters alone, for load_state_dict.")
    say(f"Writing revision {cut.revision} to {out} ...")
    return Exported(
        folder=Path(out),
        run=run,
        revision=cut.revision,
        committed_tokens=cut.committed_tokens,
        parameters=sum(tensor.numel() for tensor in cut.tensors.values()),
        model=export_state(
            cut.tensors, job, out, frozen_sha256=cut.frozen_sha256, origin=Origin(run=run)
        ),
    )


def export_state(
    state: State, job: JobConfig | None, out: str | Path, *, frozen_sha256: str, origin: Origin
) -> Path:
    """As ``export_model`` where the model is known, else the parameters alone; what to load.

    It is not, where the user's own loop or factory made it.
    """
    if job is None or job.model.factory is not None:
        return write_parameters(state, Path(out), origin)
    return export_model(state, job, out, frozen_sha256=frozen_sha256, origin=origin)


def recorded_job(record: dict[str, Any], run: str, data: str | Path | None) -> JobConfig | None:
    """The job of a run's record, with its tokenizer from the prepared folder ``data`` if given.

    None: the run was not made by the trainer, so its model is not known.

    Raises:
        ConfigError: a tokenizer is named for a run without a model.
    """
    if not record:
        if data is not None:
            raise ConfigError(f"the run {run} names no model, so no tokenizer; leave out --data.")
        return None
    job = JobConfig.from_job(record, f"the job of run {run}")
    if data is not None and job.model.factory is not None:
        raise ConfigError(f"a factory makes the model of {run}, without tokenizer; no --data.")
    if data is not None:
        here = {"path": Path(data), "url": None, "source": None, "factory": None, "arguments": {}}
        job = job.model_copy(update={"data": job.data.model_copy(update=here)})
    return job


def portable(job: JobConfig, model: nn.Module) -> JobConfig:
    """The job with nothing left out that another machine could not know: for the run's record.

    Where the model began from a folder, what of it is never trained is only there: the record
    then names the folder.
    """
    origin: dict[str, Any] = {}
    if isinstance(model, PreTrainedModel) and job.model.factory is None:
        origin = _origin_of(job.model, model)
    path = job.data.path and job.data.path.resolve()
    return job.model_copy(
        update={
            "model": job.model.model_copy(update=origin),
            "data": job.data.model_copy(update={"path": path}),
        }
    )


def _origin_of(section: ModelSection, model: PreTrainedModel) -> dict[str, Any]:
    if section.path is not None and frozen_tensors(model):
        return {"path": section.path.resolve()}
    config = model.config
    said = {key: value for key, value in config.to_diff_dict().items() if key not in UNSAID}
    return {"config": {**said, "model_type": config.model_type}, "path": None}


@torch.no_grad()
def _fill(model: nn.Module, state: State, kept: Collection[str]) -> None:
    """Write the state into the model: all that it holds but ``kept``, and nothing else."""
    held = dict(model.named_parameters()) | persistent_buffers(model)
    for name in sorted((held.keys() | state.keys()) - set(kept)):
        here, given = held.get(name), state.get(name)
        if here is None or given is None or here.shape != given.shape:
            shapes = [None if t is None else list(t.shape) for t in (here, given)]
            raise LayoutMismatch(
                f"{name} has shape {shapes[0]} in the job's model and {shapes[1]} in the trained "
                "parameters (null: it is missing); export with the job that trained them."
            )
        here.copy_(given)
