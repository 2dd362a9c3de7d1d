"""What says where a worker takes part, from its environment; and how to check such words."""

from __future__ import annotations

import os
import re
import socket

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from syncline_proto.errors import ConfigError
from syncline_proto.settings import NAME_PATTERN, RunSettings


class Environment(BaseSettings):
    """``SYNCLINE_CONTROL``, ``SYNCLINE_RUN``, ``SYNCLINE_REPLICA`` and ``SYNCLINE_TOKEN``."""

    model_config = SettingsConfigDict(env_prefix="SYNCLINE_", extra="ignore", env_ignore_empty=True)

    control: str | None = None
    """Address of the control plane; without one the worker trains alone."""
    run: str = "default"
    replica: str | None = None
    token: str | None = None


def control_url(text: str) -> str:
    """Return the control plane's address with a scheme and without a slash at its end.

    Raises:
        ConfigError: it is no http address.
    """
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"SYNCLINE_CONTROL is {text!r}; give an address like http://127.0.0.1:8500."
        )
    return url


def checked_name(kind: str, name: str) -> str:
    """Return a run's or replica's name.

    Raises:
        ConfigError: it is not safe in a path, a URL and a Kubernetes object.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(
            f"The {kind} name {name!r} must be 1 to 63 lower-case letters, digits, dots, dashes "
            "or underscores, with a letter or digit at both ends."
        )
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
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"settings: {where + ': ' if where else ''}{said}.") from None
