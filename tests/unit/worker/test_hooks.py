"""A fragment is waited for before any of its parameters is used, by whatever way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from syncline.hooks import Hooks
from syncline.layout import outline
from syncline.ranks import Ranks
from syncline_proto.errors import ConfigError
from syncline_testing.replicas import TinyModel, batch, loss_of
from syncline_testing.two_ranks import two_ranks

EVALUATED_IN_PART = """
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from syncline.fsdp import reshard_all

model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 4))
fully_shard([*model], reshard_after_forward=False)
fully_shard(model)
with torch.no_grad():
    model(torch.ones(1, 4))
    model[0](torch.ones(1, 4))
for act in (model[0].reshard, lambda: reshard_all(model)):
    act()
    print(*(isinstance(p, DTensor) for p in model.parameters()))

# A forward pass that an exception ends has gathered for layers that were not reached.
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model[1].set_modules_to_forward_prefetch([model[2]])
model(torch.ones(1, 4))

def fail(*_):
    raise KeyError

handle = model[2].register_forward_pre_hook(fail, prepend=True)
try:
    model(torch.ones(1, 4))
except KeyError:
    handle.remove()
reshard_all(model)
for parameter in model.parameters():
    parameter.detach().fill_(0.5)
print(model(torch.ones(1, 4)).tolist())
"""

# In the place of the streams on which FSDP2 gathers: of the CPU these order nothing.
WRITTEN = """
from contextlib import suppress
from types import SimpleNamespace
import torch
from torch.distributed.fsdp import fully_shard
from syncline.hooks import Hooks
from syncline.layout import outline
from syncline_testing.replicas import TinyModel, batch, loss_of

model = TinyModel()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
hooks = Hooks(model, outline(model, ranks).cut())
loss_of(model, batch(0, 0))
context = model._get_fsdp_state()._comm_ctx
told = []
for name in ("all_gather_copy_in_stream", "all_gather_stream"):
    waits = lambda stream, name=name: told.append(f"{name} waits for {stream}")
    setattr(context, name, SimpleNamespace(wait_stream=waits))
context.device_handle = SimpleNamespace(current_stream=lambda: "the writer's")
for fragment, _ in enumerate(hooks.places):
    with hooks.writing(fragment):
        told.append("written")
with suppress(KeyError), hooks.writing(0):
    raise KeyError
print(told)
"""


class Watched:
    """Hooks whose callbacks note what came when."""

    def __init__(self, model: nn.Module) -> None:
        self.described = outline(model, Ranks()).cut()
        self.seen: list[int] = []
        self.hooks = Hooks(model, self.described)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        self.hooks.install(self.optimizer, self._forward, self._before, self._after)

    def _forward(self, fragments: Iterable[int]) -> None:
        self.seen += [fragment for fragment in fragments if fragment not in self.seen]

    def _before(self) -> None:
        self.seen.append(-1)

    def _after(self) -> None:
        self.seen.append(-2)


def test_fragments_are_asked_for_in_forward_order_and_then_comes_the_step() -> None:
    model = TinyModel()
    watched = Watched(model)
    loss_of(model, batch(0, 0)).backward()
    watched.optimizer.step()
    assert watched.seen == [0, 1, 2, 3, -1, -2]
    watched.hooks.remove()
    loss_of(model, batch(0, 0)).backward()
    watched.optimizer.step()
    assert watched.seen == [0, 1, 2, 3, -1, -2]


def test_a_step_with_a_closure_is_refused_before_anything_moves() -> None:
    """A closure makes its gradients when everybody's mean has been taken already."""
    watched = Watched(TinyModel())

    def closure() -> float:
        watched.seen.append(-3)
        return 0.0

    for step in (
        lambda: watched.optimizer.step(closure),
        lambda: watched.optimizer.step(closure=closure),
    ):
        with pytest.raises(ConfigError, match="closure"):
            step()
    assert watched.seen == []
    watched.optimizer.step(None)
    assert watched.seen == [-1, -2]


def test_a_block_waits_before_any_of_its_children() -> None:
    """Attention uses its projection's weight without calling it."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, h: Tensor) -> Tensor:
            return self.inner(h, h, h, need_weights=False)[0]

    model = nn.Sequential(nn.Linear(8, 8), nn.ModuleList([Attention(), Attention()])[0])
    watched = Watched(model)
    model(torch.zeros(1, 3, 8))
    assert watched.seen == [0, 1]


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("what", ["model", "function"])
def test_what_is_compiled_still_waits(what: str, called_before: bool) -> None:
    """The code of its first call knows no hooks that come later, and does not look for any."""
    torch.compiler.reset()
    model = TinyModel()
    whole = model if what == "model" else lambda tokens: model(tokens)
    compiled = torch.compile(whole, backend="eager")
    tokens = batch(0, 0)[:, :-1]
    with torch.no_grad():
        if called_before:
            compiled(tokens)
        for _ in range(2):  # lives
            watched = Watched(model)
            for _ in range(2):
                watched.seen.clear()
                compiled(tokens)
                assert watched.seen == [0, 1, 2, 3]
            watched.hooks.remove()
            compiled(tokens)
            assert watched.seen == [0, 1, 2, 3]


def test_what_an_evaluation_of_a_part_gathered_is_dropped(tmp_path: Path) -> None:
    """Modules of one group of FSDP2, of which one alone was run: FSDP2 by itself keeps it all."""
    kept, dropped = " ".join(["False"] * 4), " ".join(["True"] * 4)
    assert two_ranks(tmp_path, EVALUATED_IN_PART) == [f"{kept}\n{dropped}\n{[[8.0] * 4]}"] * 2


def test_what_is_written_is_gathered_only_afterwards(tmp_path: Path) -> None:
    """FSDP2 gathers on streams of its own, which know nothing of who writes into the shards."""
    wait = [
        f"{name} waits for the writer's"
        for name in ("all_gather_copy_in_stream", "all_gather_stream")
    ]
    assert two_ranks(tmp_path, WRITTEN) == [str(["written", *wait] * 4)] * 2
