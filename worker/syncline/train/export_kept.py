"""From a checkpoint to a folder that ``transformers`` or torch loads; no service is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from syncline.launch.kept import opened, read
from syncline.train.export import Exported, export_state, recorded_job
from syncline.train.exported import Origin, check_free
from syncline.train.observe import assembled
from syncline_proto.codec import Float32
from syncline_proto.depot import Depot, Moved
from syncline_proto.errors import CheckpointDamaged
from syncline_proto.manifest import Entry, Manifest


def export_kept(
    url: str,
    out: str | Path,
    *,
    data: str | Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
    moved: Moved = lambda _: None,
) -> Exported:
    """Write the model of the checkpoint at ``url`` to the folder ``out``.

    Its parameters are the sync services' own, in fp32; a run's export has them as replicas do,
    rounded as the run's downlink codec sends them.

    Args:
        data: a prepared folder whose tokenizer to take, where the run's own is not at hand.
        overwrite: replace a model that is in the folder.
        say: is told what begins, before each long part.
        moved: is told of each piece that is read, in bytes.

    Raises:
        CheckpointError, CheckpointDamaged: there is no such checkpoint, or it is damaged.
        ConfigError: the folder holds a model already.
        LayoutMismatch, DataError, ConfigError: as ``export_model``, and ``recorded_job``.
    """
    if not overwrite:
        check_free(Path(out), "choose another, or --overwrite")
    depot, manifest = opened(url)
    job = recorded_job(manifest.job, manifest.run, data)
    layout = manifest.parsed_layout
    tensors = assembled(layout, parameters_of(depot, manifest, moved))
    say(f"Writing revision {manifest.revision} to {out} ...")
    return Exported(
        folder=Path(out),
        run=manifest.run,
        revision=manifest.revision,
        committed_tokens=manifest.committed_tokens,
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        model=export_state(
            tensors,
            job,
            out,
            frozen_sha256=layout.frozen_sha256,
            origin=Origin(run=manifest.run),
        ),
    )


def parameters_of(depot: Depot, manifest: Manifest, moved: Moved) -> list[Float32]:
    """The service's own parameters of each fragment, fp32 [numel].

    Raises:
        CheckpointError, CheckpointDamaged: a file is not there, or not what the manifest says.
    """
    found: list[Float32] = []
    for spec, entry in zip(manifest.parsed_layout.fragments, manifest.entries, strict=True):
        try:
            values = load(read(depot, entry, moved))["parameters"]
        except (KeyError, SafetensorError) as error:
            raise _no_file(depot, entry, spec.name) from error
        if values.shape != (spec.numel,) or values.dtype != torch.float32:
            raise _no_file(depot, entry, spec.name)
        found.append(values.numpy())
    return found


def _no_file(depot: Depot, entry: Entry, fragment: str) -> CheckpointDamaged:
    return CheckpointDamaged(f"{depot.url}/{entry.file} is no file of {fragment}.")
