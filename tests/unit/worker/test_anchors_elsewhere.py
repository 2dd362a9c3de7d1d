"""Of a model on an accelerator nothing but its parameters stays there, unless anchors are to."""

from __future__ import annotations

import pytest

from syncline_testing.warm import warm

# In a process of its own: what makes torch know the device is for good.
PROGRAM = """
import hashlib
import sys

import numpy as np
import torch
from torch import nn

from syncline.anchors import Anchors
from syncline.carrier import Direct
from syncline.interrupts import end
from syncline.layout import outline
from syncline.ranks import Ranks
from syncline.scratch import Scratch
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.elsewhere import DEVICE, Elsewhere, OnDevice, device, moved, register

register()
layer = nn.Linear(70, 50, bias=False)
moved(layer)
assert layer.weight.device == DEVICE and device.held == device.peak == 4 * 3500
carrier = Direct(Scratch(), DEVICE if sys.argv[1] == "model" else None)
held = Anchors(outline(layer, Ranks()).cut().shards, carrier)
values = np.random.default_rng(0).integers(1, 1 << 14, (6, 3500), np.uint16)  # bf16, as its bits
seen = hashlib.sha256()


def after(act, *given):
    device.peak = device.held
    with OnDevice():
        out = act(0, *given)
    seen.update(layer.weight.on_cpu.numpy().tobytes() if out is None else out.here().tobytes())
    return act.__name__, device.held - 4 * 3500, (device.peak - 4 * 3500) / 4 / 3500


def header(revision):
    return pb.PullHeader(revision=revision, codec=pb.CODEC_BF16)


print(after(held.adopt, values[0], header(1)))
with torch.no_grad():
    layer.weight.add_(Elsewhere(torch.ones(50, 70)))
with OnDevice():
    assert (held.pseudo_gradient(0, "fp32").here().view(np.float32) != 0).all()
print(after(held.pseudo_gradient, "bf16"))
print(after(held.parameters))
print(after(held.advance, values[1], header(2), held.current(0)))
print(after(held.advance, values[2], header(3), held.current(0), 0.5))
print(after(held.rebase, values[3], header(4)))
print(after(held.restore))
print(seen.hexdigest())
end(0)
"""


# By what was done: how many fragments in fp32 were there for a moment, beside what stays.
DONE = {
    "adopt": 0.0,
    "pseudo_gradient": 0.0,
    "parameters": 0.0,
    "advance": 1.0,
    "advance, mixed": 1.0,
    "rebase": 0.0,
    "restore": 0.0,
}


@pytest.fixture(scope="module")
def seen() -> dict[str, str]:
    """A hash of all that was pushed and merged, by where anchors lay."""
    return {}


@pytest.mark.parametrize(("where", "stays"), [("cpu", 0), ("model", 2 * 3500)])
def test_only_parameters_stay_on_their_device_and_anchors_by_choice(
    where: str, stays: int, seen: dict[str, str]
) -> None:
    with warm("-c", PROGRAM, where) as program:
        out, err = program.communicate(60)
    assert program.returncode == 0, err
    *lines, seen[where] = out.splitlines()
    # What an anchor has more is computed there, window by window: here in one.
    moment = DONE | ({"pseudo_gradient": 1.0} if where == "model" else {})
    for line, (what, most) in zip(lines, moment.items(), strict=True):
        name = what.partition(",")[0]
        assert line == str((name, stays, most + stays / 4 / 3500)), what
    assert len(set(seen.values())) == 1
