"""What the benchmark of a whole round asks for, computes, and calls wrong."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bare_disk
from contest import CODECS, DURABLE, OURS
from network import NETWORKS
from peers.gate import GATE, PARTICIPANT, SYSTEM, Gate
from peers.values import AVERAGE, DILOCO, PATTERN, Outer, Trainee, shapes, sizes
from round import (
    PARAMETERS,
    Life,
    figures,
    main,
    options,
    our_settings,
    shortfall,
    slow,
)
from syncline_proto.settings import RunSettings
from turns import Referee, Round, RoundFailed

SMALL = 2 * PATTERN + 5_000


def test_without_options_it_is_two_replicas_on_loopback_beside_all_peers() -> None:
    given = options().parse_args([])
    assert (given.network, given.replicas, given.codec) == ("loopback", 2, "bf16")
    assert given.peers == ["gloo", "torchft", "hivemind", "flower"]
    assert abs(sum(sizes(given.parameters)) / 50e6 - 1) < 0.01


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peers", "gloo,ray"], "ray is no peer"),
        (["--replicas", "1"], "1 is no whole number from 2 on"),
        (["--network", "10gbit"], "invalid choice: '10gbit'"),
        (["--codec", "topk"], "invalid choice: 'topk'"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options().parse_args(words)
    assert said in capsys.readouterr().err


def rounds(*seconds: float) -> list[Round]:
    return [Round(seconds=each, off=each / 100) for each in seconds]


def a_life(taken: dict[str, dict[str, list[Round]]], disk_s: float = 2.5) -> Life:
    return Life(taken=taken, failed={}, disk_s=[disk_s], disk_bytes=1)


def test_a_ratio_is_of_the_same_turn_and_what_is_missing_is_null_with_a_reason() -> None:
    taken = {
        "gloo": {
            OURS: rounds(1.0, 9.0, 2.0),
            DURABLE: rounds(4.0, 5.0, 4.0),
            "gloo": rounds(0.5, 0.5, 40.0),
        },
        "torchft": {OURS: rounds(3.0, 3.0, 3.0), "torchft": rounds(6.0, 2.0, 7.0)},
    }
    told = figures([a_life(taken)], {"flower": "No room."})
    assert told["round_s"] == told["seconds"][OURS] == 3.0
    assert told["round_durable_s"] == told["seconds"][DURABLE] == 4.0
    assert told["disk_s"] == 2.5 and told["durable_over_slowest"] == 4.0 / 3.0
    slow = figures([a_life(taken, disk_s=8.0)], {})
    assert slow["durable_over_slowest"] == 4.0 / 8.0, "of the disk, where that is slower"
    assert told["over_gloo"] == 1.0 / 0.5, "of ours only what was taken beside it"
    assert told["over_torchft_diloco"] == 0.5
    assert told["over_flower"] is told["over_hivemind"] is None
    assert told["missing"] == {"flower": "No room."}
    assert told["off"] == {OURS: 0.09, DURABLE: 0.05, "gloo": 0.4, "torchft": 0.07}


def test_a_peer_that_takes_three_times_as_long_is_in_no_other_life() -> None:
    def beside(peer: str, seconds: float) -> Life:
        return a_life({peer: {OURS: rounds(1.0), peer: rounds(seconds)}})

    first = [beside("flower", 3.0), beside("torchft", 2.9)]
    assert (slow(first, "flower"), slow(first, "torchft")) == (True, False)
    assert slow([*first, a_life({"torchft": {}})], "flower"), "of which it was no part"
    assert not slow([], "flower") and not slow(first, "gloo")


def test_of_several_lives_a_ratio_is_the_median_and_none_where_one_failed() -> None:
    """However many rounds each has; what it did in the others is in the seconds alone."""

    def beside(*seconds: float) -> dict[str, list[Round]]:
        ours = rounds(*[1.0] * len(seconds))
        return {OURS: ours, DURABLE: ours, "gloo": rounds(*seconds)}

    lives = [a_life({"gloo": beside(*its)}) for its in ([1.0] * 9, [2.0], [4.0, 4.0])]
    assert figures(lives, {})["over_gloo"] == 0.5
    failed = figures([*lives, a_life({"alone": beside()})], {"gloo": "It ended."})
    assert failed["over_gloo"] is None and failed["seconds"]["gloo"] == 1.0


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, None),
        ({"over_torchft_diloco": 1.01}, "over_torchft_diloco is 1.01, over 1"),
        ({"over_hivemind": 0.51, "over_flower": 0.3}, "over_hivemind is 0.51, over 0.5; over_flo"),
        ({"over_hivemind": None}, None),
        ({"over_torchft_diloco": 0.7}, None),
        ({"over_torchft_diloco": 0.7, "codec_up": "int8", "codec_down": "int8"}, "over 0.6"),
        ({"network": "1gbit", "over_hivemind": 0.9}, None),
        ({"network": "1gbit", "codec_up": "int8", "codec_down": "int8"}, "over_gloo is 3.00"),
        ({"over_torchft_diloco": 9.0, "parameters": 1000}, None),
        ({"over_torchft_diloco": 9.0, "replicas": 4}, None),
        ({"durable_over_slowest": 2.51}, "durable_over_slowest is 2.51, over 2.5"),
        ({"durable_over_slowest": 1.51, "network": "1gbit"}, "slowest is 1.51, over 1.5"),
        ({"durable_over_slowest": 1.26, "network": "100mbit"}, "slowest is 1.26, over 1.25"),
        ({"durable_over_slowest": 9.0, "parameters": 1000}, None),
        ({"missing": {"ray": "No room."}}, "Asked for and not measured: ray."),
        ({"missing": {"ray": "No room.", "gloo": "It hung."}, "parameters": 1000}, "ray, gloo."),
        (
            {"missing": {"ray": "No room."}, "over_flower": 0.3},
            "ray. The round is too slow: over_fl",
        ),
    ],
)
def test_too_slow_a_round_or_a_peer_that_is_missing_is_a_shortfall(
    differs: dict[str, Any], said: str | None
) -> None:
    result: dict[str, Any] = {
        "network": "loopback",
        "replicas": 2,
        "parameters": PARAMETERS,
        "codec_up": "bf16",
        "codec_down": "bf16",
        "durable_over_slowest": 1.25,
        "over_gloo": 3.0,
        "over_torchft_diloco": 1.0,
        "over_hivemind": 0.5,
        "over_flower": 0.2,
        "missing": {},
    }
    told = shortfall(result | differs)
    assert told is None if said is None else told is not None and said in told


def test_a_peer_that_cannot_be_had_is_told_after_the_figures_and_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"missing": {"flower": "No room."}, "parameters": 1000, "replicas": 2}
    monkeypatch.setattr("round.measured", lambda _: told)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["round.py"])
    with pytest.raises(SystemExit, match="not measured: flower"):
        main()
    assert json.loads(capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("parameters", "replicas", "is_asked"),
    [(PARAMETERS, 2, True), (PARAMETERS, 3, False), (1000, 2, False)],
)
def test_whether_its_ratios_count_is_said(
    parameters: int,
    replicas: int,
    is_asked: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = {"parameters": parameters, "replicas": replicas, "missing": {}}
    told |= {"network": "1gbit", "codec_up": "bf16", "codec_down": "bf16"}
    monkeypatch.setattr("round.measured", lambda _: told | {"durable_over_slowest": 9.0})
    monkeypatch.setattr("sys.argv", ["round.py"])
    with pytest.raises(SystemExit, match="too slow") if is_asked else nullcontext():
        main()
    usual = "they count with --replicas 2 --parameters 50000000."
    said = f"Nothing is asked of these ratios: {usual}\n"
    assert capsys.readouterr().err == ("" if is_asked else said)


def test_that_topk_is_not_measured_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options().parse_args(["--help"])
    assert "one round is no average" in " ".join(capsys.readouterr().out.split())


def test_the_bare_disk_gets_the_bytes_of_the_newest_round_of_the_run_and_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {
        "store-0/runs/one/0/r00000001.safetensors": 7,
        "store-0/runs/one/0/r00000002.safetensors": 11,
        "store-0/runs/one/0/head.json": 400,
        "store-0/runs/one/0.begun": 0,
        "store-1/runs/one/1/r00000002.safetensors": 3 * bare_disk.PIECE_BYTES + 5,
        "store-1/runs/other/0/r00000009.safetensors": 500,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    sizes = bare_disk.round_sizes(tmp_path, "one")
    assert sorted(sizes) == [11, 3 * bare_disk.PIECE_BYTES + 5]
    synced: list[int] = []

    def fsync(number: int) -> None:
        status = os.fstat(number)
        synced.append(0 if stat.S_ISDIR(status.st_mode) else status.st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    assert bare_disk.write_s(tmp_path / "bare", sizes) > 0
    assert sorted(synced) == [0, *sorted(sizes)], "each file whole, and their folder"
    assert not (tmp_path / "bare").exists()


@pytest.mark.parametrize("over", NETWORKS)
@pytest.mark.parametrize("codec", CODECS)
def test_the_settings_are_those_of_a_run_and_one_of_its_runs_is_durable(
    over: str, codec: str
) -> None:
    settings, notes = our_settings(over, 3, codec, 4)
    runs = {name: RunSettings.model_validate(its) for name, its in settings.items()}
    assert all(run.min_replicas == 3 and run.sync_every == 1 for run in runs.values())
    assert {run.blocks_per_fragment for run in runs.values()} == {4}
    assert {run.codec.up for run in runs.values()} == {notes["codec_up"]} == {codec}
    assert {run.codec.down for run in runs.values()} == {notes["codec_down"]}
    kinds = [run.durability for run in runs.values()]
    assert kinds[0] == notes["durability"]
    assert kinds[-1] == "commit"


def exchanged(trainees: list[Trainee]) -> None:
    """What a perfect averaging does."""
    mean = np.mean([one.flat for one in trainees], axis=0, dtype=np.float64)
    for one in trainees:
        np.copyto(one.flat, mean)


def test_the_average_of_all_is_right_and_nothing_else_is() -> None:
    trainees = [Trainee(SMALL, one, 3) for one in range(3)]
    first, second, third = trainees
    for _ in range(2):
        before = first.flat.copy()
        for one in trainees:
            one.train()
        own = first.flat.copy()
        assert first.off() > 0.5, "its own progress is not the average"
        np.copyto(first.flat, (own + second.flat) / 2)
        assert first.off() > 0.3, "neither is the average of some"
        np.copyto(first.flat, before)
        assert first.off() == pytest.approx(1.0), "nor is a round that did nothing"
        np.copyto(first.flat, own)
        exchanged(trainees)
        assert max(one.off() for one in trainees) < 1e-3
    third.flat[PATTERN // 2] = np.nan
    assert third.off() == float("inf")


@pytest.mark.parametrize("outer", [AVERAGE, DILOCO])
def test_the_outer_step_is_torchs_sgd(outer: Outer) -> None:
    """On the average pseudo-gradient, over two rounds, so that momentum counts."""
    trainees = [Trainee(SMALL, one, 2, outer) for one in range(2)]
    kept = torch.nn.Parameter(torch.from_numpy(trainees[0].flat.copy()))
    nesterov = outer.momentum > 0
    sgd = torch.optim.SGD([kept], lr=outer.lr, momentum=outer.momentum, nesterov=nesterov)
    for _ in range(2):
        for one in trainees:
            one.train()
        with torch.no_grad():
            exchanged(trainees)
            kept.grad = kept - torch.from_numpy(trainees[0].flat)
            sgd.step()
        for one in trainees:
            np.copyto(one.flat, kept.detach().numpy())
            assert one.off() < 1e-3


def test_who_comes_after_some_rounds_knows_what_the_last_of_them_made() -> None:
    trainees = [Trainee(SMALL, one, 2) for one in range(2)]
    for _ in range(3):
        for one in trainees:
            one.train()
        exchanged(trainees)
    stranger = Trainee(SMALL, 1, 2)
    stranger.before_last(3)
    assert stranger.off() == pytest.approx(1.0)
    np.copyto(stranger.flat, trainees[0].flat)
    assert stranger.off() < 1e-3
    assert stranger.round == trainees[0].round == 3


def test_a_models_tensors_are_its_whole_vector() -> None:
    trainee = Trainee(20_000, 0, 2)
    assert [array.shape for array in trainee.arrays] == shapes(20_000)
    assert all(np.shares_memory(array, trainee.flat) for array in trainee.arrays)
    assert sum(array.size for array in trainee.arrays) == trainee.flat.size


@pytest.fixture
def gate_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Gate]]:
    """Makes the gate of a participant, whose referee listens at ``tmp_path / "gate"``."""
    with ExitStack() as stack:

        def gate(number: int) -> Gate:
            told = {GATE: str(tmp_path / "gate"), SYSTEM: "one", PARTICIPANT: str(number)}
            for name, text in told.items():
                monkeypatch.setenv(name, text)
            return stack.enter_context(closing(Gate()))

        yield gate


def test_a_round_lasts_from_the_first_beginning_to_the_last_end(
    tmp_path: Path, gate_of: Callable[[int], Gate]
) -> None:
    with Referee(tmp_path / "gate", 2, limit_s=20.0) as referee:
        gates = [gate_of(number) for number in range(2)]

        def take_part(gate: Gate, took_s: float, off: float) -> None:
            gate.ready()
            with suppress(SystemExit):  # the referee has gone
                gate.ready(gate.began + took_s, off)

        threads = [
            threading.Thread(target=take_part, args=(gates[0], 100.0, 0.25), daemon=True),
            threading.Thread(target=take_part, args=(gates[1], 300.0, 0.5), daemon=True),
        ]
        for thread in threads:
            thread.start()
        done = referee.round("one", lambda: None)
        first, second = (gate.began for gate in gates)
        assert done.seconds == max(first + 100.0, second + 300.0) - min(first, second)
        assert done.off == 0.5
    for thread in threads:
        thread.join(20.0)


def test_a_system_whose_process_ends_fails_and_its_participants_end_with_the_referee(
    tmp_path: Path, gate_of: Callable[[int], Gate]
) -> None:
    def has_ended() -> None:
        raise RoundFailed("It has ended.")

    with Referee(tmp_path / "gate", 2, limit_s=20.0) as referee:
        gate = gate_of(0)
        with pytest.raises(RoundFailed, match="It has ended"):
            referee.round("one", has_ended)
    with pytest.raises((SystemExit, OSError)):
        gate.ready()
