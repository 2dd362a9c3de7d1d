"""What a replica is asked to be: by its script before its environment."""

from __future__ import annotations

import pytest

from syncline.wish import Wish, wished
from syncline_proto.errors import ConfigError


def test_where_anchors_lie_the_script_says_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wish(said: str | None = None) -> Wish | None:
        return wished("127.0.0.1:9", "run", "one", None, {}, lambda run, job: None, said)

    assert (own := wish()) and own.anchor_device == "cpu"
    monkeypatch.setenv("SYNCLINE_ANCHOR_DEVICE", "model")
    assert (own := wish()) and own.anchor_device == "model"
    assert (own := wish("cpu")) and own.anchor_device == "cpu"
    monkeypatch.setenv("SYNCLINE_ANCHOR_DEVICE", "gpu")
    with pytest.raises(ConfigError, match='anchor_device is "gpu"; it must be "cpu" or "model"'):
        wish()
