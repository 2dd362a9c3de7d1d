"""The folders that training writes to; hours later would be too late to learn that it cannot."""

from __future__ import annotations

from syncline.disk import make_writable
from syncline.train.config import JobConfig
from syncline_proto.errors import ConfigError


def make_folders(job: JobConfig) -> None:
    """Make the folders for checkpoints and export.

    Raises:
        ConfigError: one cannot be written.
    """
    for key, folder in (
        ("checkpoint.folder", job.checkpoint.folder),
        ("export.folder", job.export.folder),
    ):
        if folder is None:
            continue
        try:
            make_writable(folder)
        except OSError as error:
            raise ConfigError(f"{key}: cannot write to {folder}: {error.strerror}.") from None
