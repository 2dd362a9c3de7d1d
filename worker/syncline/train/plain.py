"""A run's parameters as one safetensors file: for a model that only the user's own script knows.

Knows no model and no tokenizer, and loads neither; only names, shapes and values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from syncline.train.exported import PARAMETERS, Origin
from syncline.train.exporting import exporting


def write_parameters(tensors: Mapping[str, torch.Tensor], out: Path, origin: Origin) -> Path:
    """Write what was trained to a file in the folder ``out``, in place of one that is there.

    Args:
        tensors: canonical names to whole fp32 tensors on the CPU. Of tied ones there is one, under
            its first name, and nothing of what is frozen: as the run's layout has them.
        origin: whose parameters they are, for the folder's signature.

    Raises:
        ConfigError: the folder cannot be written.
    """
    half = out / f"{PARAMETERS}.new"
    with exporting(out, origin):
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(whole, half, metadata={"format": "pt", "run": origin.run})
        os.replace(half, out / PARAMETERS)
    return out / PARAMETERS
