"""Of a model on an accelerator nothing but its parameters stays there: anchors are the CPU's."""

from __future__ import annotations

from syncline_testing.warm import warm

# In a process of its own: what makes torch know the device is for good.
PROGRAM = """
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
held = Anchors(outline(layer, Ranks()).cut().shards, Direct(Scratch()))
values = np.random.default_rng(0).integers(1, 1 << 14, (6, 3500), np.uint16)  # bf16, as its bits


def after(act, *given):
    device.peak = device.held
    with OnDevice():
        act(0, *given)
    return act.__name__, device.held - 4 * 3500, (device.peak - 4 * 3500) / 4 / 3500


def header(revision):
    return pb.PullHeader(revision=revision, codec=pb.CODEC_BF16)


print(after(held.adopt, values[0], header(1)))
with torch.no_grad():
    layer.weight.add_(Elsewhere(torch.ones(50, 70)))
assert (held.pseudo_gradient(0, "fp32").here().view(np.float32) != 0).all()
print(after(held.pseudo_gradient, "bf16"))
print(after(held.parameters))
print(after(held.advance, values[1], header(2), held.current(0)))
print(after(held.advance, values[2], header(3), held.current(0), 0.5))
print(after(held.rebase, values[3], header(4)))
print(after(held.restore))
end(0)
"""


def test_nothing_but_the_parameters_stays_on_their_device() -> None:
    """By what was done: bytes that stay, and how many fragments were there for a moment."""
    with warm("-c", PROGRAM) as program:
        out, err = program.communicate(60)
    assert program.returncode == 0, err
    assert out.splitlines() == [
        "('adopt', 0, 0.0)",
        "('pseudo_gradient', 0, 0.0)",
        "('parameters', 0, 0.0)",
        "('advance', 0, 1.0)",
        "('advance', 0, 1.0)",
        "('rebase', 0, 0.0)",
        "('restore', 0, 0.0)",
    ]
