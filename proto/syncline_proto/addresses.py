"""What an address or a token must look like, said before anybody connects to it.

A library that is handed a wrong one fails late, and in words of its own. Pure.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from syncline_proto.errors import ConfigError

PORT_MAX = 65535

_BARE_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\d)")
"""A scheme without its slashes, or a host with an empty port; not ``localhost:8500``."""

_VISIBLE = re.compile(r"[\x21-\x7e]+")


def control_url(text: object) -> str:
    """Return the control plane's address with a scheme and without a slash at its end.

    Of a control plane of several processes it may be all their addresses, with commas between.

    Raises:
        ConfigError: nobody could be reached by it.
    """
    if not isinstance(text, str):
        raise ConfigError(
            f"The control plane's address {text!r} cannot be used, since it is no text; write "
            "http://HOST:PORT.",
            "control",
        )
    return ",".join(_one_control_url(part.strip(" ")) for part in text.split(","))


def _one_control_url(text: str) -> str:
    bare = "://" not in text
    url = (f"http://{text}" if bare else text).rstrip("/")
    wrong = "the scheme is missing" if bare and _BARE_SCHEME.match(text) else _wrong_url(url)
    if wrong is not None:
        raise ConfigError(
            f"The control plane's address {_shown(text)} cannot be used, since {wrong}; "
            "write http://HOST:PORT.",
            "control",
        )
    return url


def sync_address(text: str) -> str:
    """Return the address of a sync service, as it announced itself.

    Raises:
        ConfigError: it is not HOST:PORT.
    """
    wrong = "it holds more than that" if re.search(r"[/?#@]", text) else _wrong_url(f"//{text}")
    if wrong is None and urlsplit(f"//{text}").port is None:
        wrong = "the port is missing"
    if wrong is not None:
        raise ConfigError(
            f"A sync service announced the address {_shown(text)}, which is not HOST:PORT, "
            f"since {wrong}; start it with --advertise HOST:PORT."
        )
    return text


def bearer_token(token: str | None) -> str | None:
    """Return the token, or None where it is empty.

    Raises:
        ConfigError: it cannot stand in a header. It is not repeated.
    """
    if why := wrong_token(token or ""):
        given = f"The token {why}; give it exactly as the control plane has it."
        raise ConfigError(given, "token")
    return token or None


def wrong_token(token: str) -> str | None:
    """Why it cannot stand in a header, as what follows "the token"; None if it can."""
    if not token or _VISIBLE.fullmatch(token):
        return None
    return "holds a line break, a space or a character beyond ASCII"


def _wrong_url(url: str) -> str | None:
    """What is wrong with ``scheme://host:port/path``; None if nothing is."""
    if re.search(r"[\x00-\x20\x7f]", url):
        return "it holds a space or a control character"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the host is wrong"
    if parts.scheme not in ("", "http", "https"):
        return "only http and https are spoken"
    if parts.query or parts.fragment or parts.username is not None:
        return "it holds more than scheme, host, port and path"
    return _wrong_host(parts) or _wrong_port(parts)


def _wrong_host(parts: SplitResult) -> str | None:
    if not parts.hostname:
        return "the host is missing"
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        return "the host is wrong"
    return None


def _wrong_port(parts: SplitResult) -> str | None:
    try:
        is_port = parts.port is None or 0 < parts.port <= PORT_MAX
    except ValueError:
        is_port = False
    return None if is_port else f"the port must be 1 to {PORT_MAX}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "...")
