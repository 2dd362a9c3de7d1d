"""What says where a worker takes part, from its environment; and how to check such words."""

from __future__ import annotations

import os
import re
import socket
from typing import Literal, TypeAlias

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from syncline_proto.errors import ConfigError
from syncline_proto.names import NAME_WORDS, valid_name
from syncline_proto.settings import RunSettings
from syncline_proto.words import sentence

AnchorDevice: TypeAlias = Literal["cpu", "model"]
"""Where a replica's anchors lie: in the CPU's memory, or on the device of its model."""


class Environment(BaseSettings):
    """``SYNCLINE_CONTROL``, ``_RUN``, ``_REPLICA``, ``_TOKEN`` and ``_ANCHOR_DEVICE``."""

    model_config = SettingsConfigDict(env_prefix="SYNCLINE_", extra="ignore", env_ignore_empty=True)

    control: str | None = None
    """Address of the control plane; without one the worker trains alone."""
    run: str = "default"
    replica: str | None = None
    token: str | None = None
    anchor_device: str = "cpu"


def checked_device(word: str) -> AnchorDevice:
    """Return where anchors are to lie.

    Raises:
        ConfigError: there is no such place.
    """
    if word == "cpu" or word == "model":
        return word
    raise ConfigError(f'anchor_device is "{word}"; it must be "cpu" or "model".')


def checked_ramp(steps: object) -> int | None:
    """Return over how many first steps a joiner's grow; None: as many as the run's settings say.

    Raises:
        ConfigError: it is no number of steps.
    """
    if steps is None or (isinstance(steps, int) and steps >= 0):
        return steps
    raise ConfigError(f"join_ramp_steps is {steps!r}; it must be 0 or more, and whole.")


def checked_name(kind: str, name: object) -> str:
    """Return a run's or replica's name.

    Raises:
        ConfigError: it is not safe in a path, a URL and a Kubernetes object.
    """
    if not isinstance(name, str) or not valid_name(name):
        raise ConfigError(f"The {kind} name {name!r} must be {NAME_WORDS}.")
    return name


def default_replica() -> str:
    """A replica's name where none is given: of this machine and process.

    Two processes on one machine must not get one name, or each would fence the other.
    """
    host = re.sub(r"[^a-z0-9._-]", "-", socket.gethostname().lower()).strip("._-") or "replica"
    return f"{host[:50]}-{os.getpid()}"


def run_settings(given: RunSettings | dict[str, object] | None) -> RunSettings:
    """Return the settings that a user gave, or the defaults.

    Raises:
        ConfigError: a setting is unknown or out of range; the message names the first.
    """
    if isinstance(given, RunSettings):
        return given
    try:
        return RunSettings.model_validate(given or {})
    except ValidationError as error:
        raise ConfigError(f"settings: {sentence(error, RunSettings)}") from None
