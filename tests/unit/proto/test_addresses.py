"""A wrong address or token is refused before anybody connects, in one sentence."""

from __future__ import annotations

import pytest

from syncline_proto.addresses import bearer_token, control_url, sync_address
from syncline_proto.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8500/", "http://127.0.0.1:8500"),
        ("localhost:8500", "http://localhost:8500"),
        ("control", "http://control"),
        ("https://a.example/syncline/", "https://a.example/syncline"),
        ("[::1]:8500", "http://[::1]:8500"),
        ("http://sync_control:1", "http://sync_control:1"),
        ("a:1/, https://b", "http://a:1,https://b"),
    ],
)
def test_an_address_gets_a_scheme_and_loses_its_last_slash(text: str, url: str) -> None:
    assert control_url(text) == url


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://127.0.0.1:99999", "the port must be 1 to 65535"),
        ("http://127.0.0.1:0", "the port must be 1 to 65535"),
        ("127.0.0.1:port", "the port must be 1 to 65535"),
        ("http://:8500", "the host is missing"),
        ("http://", "the host is missing"),
        ("", "the host is missing"),
        ("http://a,", "the host is missing"),
        ("http://a..b:8500", "the host is wrong"),
        ("http://" + "a" * 64, "the host is wrong"),
        ("http://[::1:8500", "the host is wrong"),
        ("ftp://127.0.0.1:8500", "only http and https"),
        ("http:/127.0.0.1:8500", "the scheme is missing"),
        ("http://127.0.0.1:8500\n", "a control character"),
        ("http://a b:8500", "a space"),
        ("http://me:pw@127.0.0.1:8500", "more than scheme"),
        ("http://127.0.0.1:8500/?a=1", "more than scheme"),
    ],
)
def test_a_wrong_address_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT") as refused:
        control_url(text)
    assert why in refused.value.message and "\n" not in refused.value.message
    assert refused.value.setting == "control"


@pytest.mark.parametrize("address", ["127.0.0.1:50051", "[::1]:1", "sync-0.sync:65535"])
def test_a_sync_service_is_reached_by_host_and_port(address: str) -> None:
    assert sync_address(address) == address


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:0", "host:99999", "http://h:1", "a b:1", "u@h:1", "h:1/x"]
)
def test_a_wrong_address_of_a_sync_service_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="--advertise HOST:PORT"):
        sync_address(address)


def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated() -> None:
    assert bearer_token("s3cret~") == "s3cret~"
    assert bearer_token("") is bearer_token(None) is None
    for wrong in ("s3cret\n", "s3 cret", "s3crét", "s3cret\x00"):
        with pytest.raises(ConfigError) as refused:
            bearer_token(wrong)
        assert refused.value.setting == "token"
        assert "s3" not in refused.value.message
