"""The folders that training writes to; hours later would be too late to learn that it cannot."""

from __future__ import annotations

import errno
import os

from syncline.train.config import JobConfig
from syncline_proto.errors import ConfigError


def check_writable(job: JobConfig) -> None:
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
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ConfigError(f"{key}: cannot write to {folder}: {error.strerror}.") from None
