"""The sync service's own settings: flags over environment (SYNCLINE_SYNC_*) over defaults."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from syncline_proto.addresses import control_url, sync_address, wrong_token
from syncline_proto.errors import ConfigError
from syncline_proto.layout import shown
from syncline_proto.names import MAYBE_NAME_PATTERN
from syncline_proto.owners import SHARDS_MAX, Seat, ordinal
from syncline_proto.settings import is_loopback
from syncline_sync.word import Word

OF_HOST = "host"
"""Instead of an index: the number at the end of the host's name, as in a StatefulSet."""

PREFIX = "SYNCLINE_SYNC_"
"""Of the settings' variables."""

PORTS = ("port", "health_port", "metrics_port")

STAGING_MIN = 1 << 20

UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
"""What follows a size: by how many bits it moves the number."""


class SyncSettings(BaseSettings):
    """Where to listen, where to keep what, whom to ask."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore")

    control: str = "http://127.0.0.1:8500"
    token: str = ""
    """Bearer token: sent to the control plane, and asked of everyone who calls us."""
    insecure: bool = False
    """Allow strangers: no token although other machines can reach us."""
    host: str = "127.0.0.1"
    port: int = Field(default=50051, ge=0, le=65535)
    health_port: int = Field(default=50052, ge=0, le=65535)
    metrics_port: int = Field(default=9101, ge=0, le=65535)
    advertise: str = ""
    """The address that replicas connect to; empty: host and port, if host is an address."""
    data: Path = Field(default=Path("syncline-data"), validate_default=True)
    """Absolute: what is told of a file may be read elsewhere."""
    shards: int = Field(default=1, ge=1, le=SHARDS_MAX)
    """How many services share the fragments of every run."""
    index: int | None = Field(default=None, ge=0)
    """Which of them this is, from 0; None: all of them, each in a process of its own."""
    parent: int = 0
    """The process that began this one, and without which it ends; 0: nobody."""
    name: str = Field(default="", pattern=MAYBE_NAME_PATTERN)
    """Empty: sync- and the index."""
    staging_bytes: int = Field(default=2 << 30, ge=STAGING_MIN)
    """Encoded pushes that may be in flight; the largest fragment's push always fits. As text with
    a unit, too: 512M, 2G, 2GiB."""
    threads: int = Field(default=0, ge=0, le=256)
    """Pool threads for arithmetic; 0: one per core, at least 4."""
    fall_back: str = ""
    """RUN@REVISION: a run whose damaged files give way to the revisions before them, as this
    process starts, where none of a later revision is damaged."""
    log_json: bool = False

    @property
    def seat(self) -> Seat:
        return Seat(self.index or 0, self.shards)

    @property
    def own_name(self) -> str:
        return self.name or f"sync-{self.seat.index}"

    @field_validator("index", mode="before")
    @classmethod
    def _is_a_number_or_the_hosts(cls, index: Any) -> Any:
        if index != OF_HOST:
            return index
        host = socket.gethostname()
        if (number := ordinal(host)) is None:
            raise ValueError(f"the host's name, {shown(repr(host))}, does not end in -NUMBER")
        return number

    @field_validator("fall_back")
    @classmethod
    def _is_a_word(cls, said: str) -> str:
        return str(Word.of(said)) if said else ""

    @field_validator("data", mode="before")
    @classmethod
    def _is_a_folder(cls, data: Any) -> Any:
        # Of an empty one ``Path`` makes the folder in which the service was started.
        if data == "":
            raise ValueError("it is empty; name a folder")
        return Path(data).absolute() if isinstance(data, str | Path) else data

    @field_validator("staging_bytes", mode="before")
    @classmethod
    def _is_a_size(cls, size: Any) -> Any:
        if not isinstance(size, str):
            return size
        sized = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(iB)?", size.strip())
        if sized is None or (sized[3] and not sized[2]):
            raise ValueError(
                f"{shown(repr(size))} is not a number of bytes, such as 2147483648, 512M or 2G "
                "(K, M, G, T: each 1024 times the one before)"
            )
        number = int(sized[1]) << UNITS.get(sized[2], 0)
        if number < STAGING_MIN:
            raise ValueError(f"it must be at least {STAGING_MIN} (1M), not {shown(repr(size))}")
        return number

    @field_validator("control")
    @classmethod
    def _is_an_address(cls, control: str) -> str:
        try:
            return control_url(control)
        except ConfigError as error:
            raise ValueError(error.message) from None

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: str) -> str:
        if why := wrong_token(token):
            raise ValueError(f"it {why}, which no caller could send; choose another")
        return token

    @field_validator("advertise")
    @classmethod
    def _is_host_and_port(cls, advertise: str) -> str:
        try:
            return advertise and sync_address(advertise)
        except ConfigError:
            raise ValueError(
                f"{shown(repr(advertise))} is not HOST:PORT, which replicas could connect to"
            ) from None

    @model_validator(mode="after")
    def _index_below_shards(self) -> Self:
        if self.index is not None and self.index >= self.shards:
            raise ValueError(
                f"index {self.index} is not below shards ({self.shards}): services are counted "
                "from 0; say the same number of shards to all of them"
            )
        return self

    @model_validator(mode="after")
    def _each_port_once(self) -> Self:
        taken: dict[int, str] = {}
        for name in PORTS:
            port, flag = getattr(self, name), flag_of(name)
            if port and (other := taken.setdefault(port, flag)) != flag:
                raise ValueError(
                    f"{other} and {flag} are both {port}, and each needs a port of its own; "
                    "choose another for one of them"
                )
        return self

    @model_validator(mode="after")
    def _no_open_doors(self) -> Self:
        if not (self.token or self.insecure or is_loopback(self.host)):
            raise ValueError(
                f"{self.host} can be reached from other machines and there is no token; give "
                "--token (or SYNCLINE_SYNC_TOKEN), or --insecure if the network is yours"
            )
        return self

    @model_validator(mode="after")
    def _no_address_of_nobody(self) -> Self:
        told = self.advertise.rpartition(":")[0] or self.host
        if _is_wildcard(told):
            raise ValueError(
                f"replicas are told to connect to {told}, which is no machine's address; give "
                "--advertise HOST:PORT (or SYNCLINE_SYNC_ADVERTISE) as they reach this service"
            )
        return self


def flag_of(key: str) -> str:
    """What a setting is on the command line."""
    return "--" + key.replace("_", "-")


def _is_wildcard(host: str) -> bool:
    """Whether one may listen there, on every address of the machine, and connect to none."""
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False
