"""A replica in the loop of others: what it does to their optimizer."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from syncline.care import ramped
from syncline.drained import drained_on_sigterm, is_free


def test_a_joiners_first_steps_are_shorter_and_the_schedule_hears_nothing_of_it() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}])
    factors = iter([0.25, 1.0])
    end = ramped(optimizer, lambda: next(factors))
    moved: list[float] = []
    for _ in range(3):
        weight.grad = torch.ones(1)
        before = weight.item()
        optimizer.step()
        moved.append(before - weight.item())
        assert optimizer.param_groups[0]["lr"] == 0.5
        if len(moved) == 2:
            end()
    assert moved == [0.125, 0.5, 0.5]


def test_a_step_that_fails_leaves_no_lower_rate_behind() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}])
    end = ramped(optimizer, lambda: 0.5)
    failing = optimizer.register_step_pre_hook(fail)
    weight.grad = torch.ones(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.25
    failing.remove()
    optimizer.step()
    assert weight.item() == -0.25 and optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(ZeroDivisionError):
        optimizer.register_step_pre_hook(fail)
        optimizer.step()
    end()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_who_heeds_sigterm_already_keeps_it_and_it_comes_back() -> None:
    asked: list[str] = []
    replica: Any = SimpleNamespace(request_drain=asked.append)
    before = signal.signal(signal.SIGTERM, own)
    try:
        assert not is_free()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert is_free()
        thread = threading.Thread(target=lambda: drained_on_sigterm(replica)())
        thread.start()
        thread.join()
        assert is_free(), "no thread but the main one may set it"
        drained_on_sigterm(replica)
        signal.raise_signal(signal.SIGTERM)
        assert asked == ["a signal (SIGTERM)"]
        assert is_free(), "a second one would end the process"
        end = drained_on_sigterm(replica)
        end()
        assert is_free()
        end = drained_on_sigterm(replica)
        signal.signal(signal.SIGTERM, own)
        end()
        assert signal.getsignal(signal.SIGTERM) is own, "somebody has set it meanwhile"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_sigterm_at_the_very_instant_from_which_it_is_heeded_is_heeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    replica: Any = SimpleNamespace(request_drain=asked.append)
    set_handler = signal.signal

    def set_and_get_one(number: int, handler: Any) -> Any:
        monkeypatch.undo()
        before = set_handler(number, handler)
        signal.raise_signal(signal.SIGTERM)
        return before

    monkeypatch.setattr(signal, "signal", set_and_get_one)
    end = drained_on_sigterm(replica)
    assert asked == ["a signal (SIGTERM)"] and is_free()
    end()
    assert is_free()


def own(*_: object) -> None:
    raise AssertionError("nobody was to call this")


def fail(*_: object) -> None:
    raise ZeroDivisionError
