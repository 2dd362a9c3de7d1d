"""The program's own settings: flags before environment (SYNCLINE_CONTROL_*) before defaults."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from syncline_proto.addresses import wrong_token
from syncline_proto.errors import ConfigError
from syncline_proto.settings import is_loopback
from syncline_proto.words import flag_or_variable, sentence

PREFIX = "SYNCLINE_CONTROL_"
"""Of the settings' variables."""


class ControlSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8500, ge=0, le=65535)
    """0 takes a free one and says which."""
    database: str = "syncline-control.db"
    """A path (SQLite) or a URL (PostgreSQL, which several may share)."""
    token: SecretStr | None = Field(default=None, min_length=1)
    """What callers must send as a bearer token."""
    insecure: bool = False
    """Allow strangers: no token although other machines can reach us."""
    log_json: bool = False

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and (why := wrong_token(token.get_secret_value())):
            raise ValueError(f"it {why}, which no caller could send; choose another")
        return token

    @model_validator(mode="after")
    def _no_open_doors(self) -> Self:
        if self.token is None and not self.insecure and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} can be reached from other machines and there is no token; "
                "give --token (or SYNCLINE_CONTROL_TOKEN), or --insecure if the network is yours."
            )
        return self


def resolved(flags: dict[str, Any]) -> ControlSettings:
    """Return the settings with the flags that were given (not None) on top.

    Raises:
        ConfigError: one of them is wrong; the message names it.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        return ControlSettings(**given)
    except ValidationError as error:
        raise ConfigError(sentence(error, name=flag_or_variable(given, PREFIX))) from None
