"""From a checkpoint to a folder that ``transformers`` loads; no service and no run is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors.numpy import load

from syncline.launch.kept import Moved, opened, read
from syncline.train.export import Exported, export_model, recorded_job
from syncline.train.exported import Origin, check_free
from syncline.train.observe import assembled
from syncline_proto.codec import Float32
from syncline_proto.errors import CheckpointDamaged


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
        ConfigError: the folder holds a model already, or the run was not made by the trainer.
        LayoutMismatch, DataError, ConfigError: as ``export_model``.
    """
    if not overwrite:
        check_free(Path(out), "choose another, or --overwrite")
    depot, manifest = opened(url)
    job = recorded_job(manifest.job, manifest.run, data)
    layout = manifest.cut
    fragments: list[Float32] = []
    for spec, entry in zip(layout.fragments, manifest.entries, strict=True):
        values = load(read(depot, entry, moved)).get("parameters")
        if values is None or values.shape != (spec.numel,):
            raise CheckpointDamaged(f"{depot.url}/{entry.file} is no file of {spec.name}.")
        fragments.append(values)
    tensors = assembled(layout, fragments)
    say(f"Writing revision {manifest.revision} to {out} ...")
    return Exported(
        folder=export_model(
            tensors,
            job,
            out,
            frozen_sha256=layout.frozen_sha256,
            origin=Origin(run=manifest.run),
        ),
        run=manifest.run,
        revision=manifest.revision,
        committed_tokens=manifest.committed_tokens,
        parameters=sum(tensor.numel() for tensor in tensors.values()),
    )
