"""A run's settings: presets give way to what is set, patches are partial, relations hold."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from syncline_proto.codec import CODEC_BY_NAME
from syncline_proto.errors import ConfigError
from syncline_proto.merging import OuterSettings
from syncline_proto.names import valid_name
from syncline_proto.rest import RunCreate
from syncline_proto.settings import LIVE, PRESETS, CodecName, RunSettings, TimeoutSettings, changed


def read(**given: Any) -> RunSettings:
    return RunSettings.model_validate(given)


def test_the_presets_are_the_designs() -> None:
    edit = RunSettings()
    assert (edit.outer.lr, edit.outer.momentum, edit.outer.clip) == (0.7, 0.9, 10.0)
    rules = edit.penalty
    assert (rules.ema, rules.z_max, rules.ratio_min, rules.ratio_max) == (0.02, 3.0, 2.0, 10.0)
    assert (rules.norm_max, rules.detector_rounds, rules.kappa) == (None, 10, 0.5)
    assert (rules.temperature, rules.step_power, rules.enabled) == (None, 0.0, True)
    paper = read(strategy="edit-paper")
    assert (paper.outer.lr, paper.outer.momentum, paper.outer.clip) == (0.8, 0.85, 10.0)
    assert (paper.penalty.temperature, paper.penalty.ratio_min) == (1.0, 1.0)
    average = read(strategy="local-sgd")
    assert average.outer == OuterSettings(lr=1.0, momentum=0.0, clip=None)
    assert not average.penalty.enabled
    diloco = read(strategy="diloco")
    assert diloco.outer == OuterSettings(lr=0.7, momentum=0.9, clip=None)
    assert not diloco.penalty.enabled


def test_what_is_set_wins_over_the_preset_and_leaves_the_rest_of_it() -> None:
    settings = read(strategy="local-sgd", outer={"momentum": 0.5})
    assert settings.outer == OuterSettings(lr=1.0, momentum=0.5, clip=None)


def test_the_codecs_to_choose_from_are_those_that_are_spoken() -> None:
    assert get_args(CodecName) == tuple(CODEC_BY_NAME)
    for name in CODEC_BY_NAME:
        assert read(codec={"up": name}).codec.up == name


@pytest.mark.parametrize("strategy", sorted(PRESETS))
def test_settings_come_back_equal_from_json(strategy: str) -> None:
    settings = read(strategy=strategy, outer={"lr": 0.25}, timeouts={"profile": "wan"})
    assert RunSettings.model_validate_json(settings.model_dump_json()) == settings
    assert RunSettings.model_validate(json.loads(json.dumps(settings.model_dump()))) == settings


def test_a_patch_is_partial_and_checked() -> None:
    settings = read(strategy="edit-paper")
    patched = changed(settings, {"outer": {"lr": 0.5}, "sync_every": 8, "codec": {"up": "fp32"}})
    assert (patched.outer.lr, patched.outer.momentum) == (0.5, 0.85)
    assert (patched.sync_every, patched.codec.up, patched.codec.down) == (8, "fp32", "bf16")
    assert patched.penalty == settings.penalty
    assert settings == read(strategy="edit-paper")


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"outer": {"lr": -1}}, "outer.lr must be at least 0, not -1."),
        (
            {"outer": {"momentun": 0}},
            "outer.momentun is not a setting; did you mean outer.momentum?",
        ),
        ({"outer": {"rl": 0.5}}, "outer.rl is not a setting; did you mean outer.lr?"),
        ({"nosuch": 1}, "nosuch is not a setting. Known here: codec, grace_seconds, late, "),
        ({"lr": 1}, "lr is not a setting; did you mean outer.lr?"),
        ({"sync_evry": 1}, "sync_evry is not a setting; did you mean sync_every?"),
        ({"outer": 3}, "outer must be a group of keys, not 3."),
        ({"token_budget": 5}, "token_budget is settled when a run is created"),
        ({"sync_seconds": 0}, "sync_seconds must be at least 0.1, not 0"),
        ({"min_round_steps": 5}, "min_round_steps (5) is for rounds by time: set sync_seconds."),
    ],
)
def test_a_wrong_patch_is_refused_in_one_sentence(patch: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        changed(RunSettings(), patch)
    assert refused.value.message.startswith(says)


def test_live_settings_exist() -> None:
    assert RunSettings.model_fields.keys() >= LIVE


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": "sgd"},
        {"strategy": ["edit"]},
        {"sync_every": 0},
        {"min_replicas": 0},
        {"outer": {"momentum": 1.0}},
        {"outer": {"lr": math.nan}},
        {"outer": {"clip": math.inf}},
        {"penalty": {"ratio_max": math.inf}},
        {"penalty": {"ema": 0}},
        {"penalty": {"ema": 1e-17}},
        {"codec": {"up": "int2"}},
        {"codec": {"down": "int4"}},
        {"codec": {"down": "topk"}},
        {"timeouts": {"lease": 0.1}},
        {"timeouts": {"lease": 20, "round_deadline": 20}},
        {"timeouts": {"round_deadline": 5}},
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunSettings.model_validate(wrong)
    with pytest.raises(ValidationError):
        RunCreate.model_validate({"name": "run", "settings": wrong})


@pytest.mark.parametrize("profile", ["lan", "wan"])
def test_the_times_of_a_profile_fit_each_other(profile: str) -> None:
    times = TimeoutSettings.model_validate({"profile": profile})
    assert times.heartbeat_s < times.lease_s < times.round_deadline_s
    assert times.connect_s < times.call_s < times.give_up_s


@pytest.mark.parametrize("name", ["a", "my-run", "7b.v2_x", "a" * 63])
def test_a_good_name(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "a-", ".", "..", "a/b", "a\n", "\na", "a b", "ä", "a" * 64, "a\x00"]
)
def test_a_name_that_could_leave_its_folder_or_break_a_line_is_none(name: str) -> None:
    assert not valid_name(name)
    with pytest.raises(ValidationError):
        RunCreate(name=name)


@pytest.mark.parametrize(
    ("given", "key"),
    [({"sync_every": True}, "sync_every"), ({"outer": {"lr": False}}, "outer.lr")]
    + [({"outer": {"clip": True}}, "outer.clip"), ({"penalty": {"z_max": True}}, "penalty.z_max")],
)
def test_true_is_no_number(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: must not be (true|false)"):
        changed(RunSettings(), given)
    assert read(sync_every="16", penalty={"enabled": "false"}).sync_every == 16
    assert not read(penalty={"enabled": False}).penalty.enabled
