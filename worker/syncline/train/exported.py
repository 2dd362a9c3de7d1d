"""What a folder of an export holds, and whose it is. Loads nothing heavy."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from syncline_proto.errors import ConfigError, FileMissing

ORIGIN = "syncline.json"
"""Beside the model, in a folder that an export wrote."""
PARAMETERS = "parameters.safetensors"
"""What an export has of a run whose model only a user's own script knows."""
CHOOSE = "choose another with --set export.folder=DIR, or remove it"
"""What to do where a job's folder is not free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who exported a model."""

    run: str
    alone: bool = False
    """It was trained without a control plane, under the run's name."""


def sign(folder: Path, origin: Origin) -> None:
    """Note whose export the folder is to hold; before the model, so that no part of it is unsigned.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / f"{ORIGIN}.new"
    whole.write_text(json.dumps(asdict(origin)) + "\n")
    os.replace(whole, folder / ORIGIN)


def check_free(folder: Path, way_out: str, *, mine: Origin | None = None) -> None:
    """Refuse a folder that holds a model, unless it is an export of ``mine``.

    ``way_out`` ends the sentence: what to do.

    Raises:
        ConfigError: it does.
    """
    if not any((folder / name).exists() for name in ("config.json", PARAMETERS)):
        return
    origin = _signed_by(folder)
    if origin is not None and origin == mine:
        return
    what = "a model"
    if origin is not None:
        what = "a model trained alone as" if origin.alone else "an export of the run"
        what = f"{what} {origin.run}"
    raise ConfigError(f"The folder {folder} holds {what} already; {way_out}.")


def check_loadable(folder: Path) -> None:
    """Refuse a folder without a model that ``transformers`` could load.

    Raises:
        FileMissing: it is not there, or holds none.
        ConfigError: it holds the parameters of a model that only a user's own code knows.
    """
    if (folder / "config.json").is_file():
        return
    if (folder / PARAMETERS).is_file():
        raise ConfigError(
            f"{folder} holds the parameters of a run of one's own loop or factory, which alone "
            f"knows the model; load {folder / PARAMETERS} into it (docs/checkpoints.md)."
        )
    if not folder.is_dir():
        raise FileMissing(f"There is no folder {folder}; name one that syncline export wrote.")
    raise FileMissing(
        f"{folder} holds no model; export one with: syncline export RUN --out {folder}."
    )


def _signed_by(folder: Path) -> Origin | None:
    """Whose export the folder holds; None if it does not say, or nothing readable."""
    try:
        told = json.loads((folder / ORIGIN).read_text())
    except (OSError, ValueError):
        return None
    run = told.get("run") if isinstance(told, dict) else None
    if not isinstance(run, str):
        return None
    return Origin(run=run, alone=told.get("alone") is True)
