"""What a model has and replicas do not exchange: allowed while nothing changes.

These are buffers that are saved with it (DeepSeek-V3's routing bias), and frozen parameters, of
which it is enough to see that they stay frozen. A buffer is equal everywhere only because it began
so, which the layout's hash of frozen tensors tells, and because it stays so, which is looked after
here: at the first inner step, at each boundary, and in the synchronous phase as often and at its
end. Never changes one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from syncline.blocks import CanonicalNames
from syncline.layout import local_part, persistent_buffers
from syncline.ranks import Ranks
from syncline_proto.errors import ConfigError

Seen = tuple[torch.dtype, torch.Size, bytearray | memoryview]
"""What a buffer is, and the bytes of this rank's part of it."""


class Buffers:
    """The persistent floating-point buffers of one model, as they were when it joined.

    A copy of each is kept in the host's memory: to compare bytes takes a fraction of a hash's time,
    and a NaN is equal to itself.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        self._trained = self._look_at_trained()
        now = self._look().items()
        self._began = {name: (dtype, shape, bytearray(data)) for name, (dtype, shape, data) in now}

    def check_unchanged(self) -> None:
        """See that there are the same ones as then, each as it was. Collective.

        Raises:
            ConfigError: one came, is gone or has changed, or a parameter is trained that was not,
                on some rank; on all ranks.
        """
        thawed = sorted(self._look_at_trained() - self._trained)
        now, names = self._look(), sorted(self._began)
        others = sorted(now.keys() ^ self._began.keys())
        # The copy stands on the left: a bytearray compares at once, a memoryview byte by byte.
        changed = (i for i, name in enumerate(names) if self._began[name] != now.get(name))
        found = -2 if thawed else -1 if others else next(changed, len(names))
        first = min(index for (index,) in self._ranks.gather([found]))
        if first == -2:
            what = f"The parameter {thawed[0]}" if thawed else "A parameter of another rank"
            raise ConfigError(
                f"{what} requires a gradient, and did not, or was not there, when the replica "
                "joined: no round would carry it, and replicas would drift apart in it; let all "
                "that is to be trained require one before, and start another run."
            )
        if first < 0:
            # Ranks know their own buffers only.
            what = f"The buffer {others[0]}" if others else "A buffer of another rank"
            raise ConfigError(
                f"{what} came or went since the replica joined, which would make it another model "
                "than the run's; register it before, or with persistent=False, and start another "
                "run."
            )
        if first < len(names):
            raise ConfigError(
                f"The buffer {names[first]} has changed in training, and replicas, which exchange "
                "parameters only, would drift apart in it; use a layer without running "
                "statistics, or register it with persistent=False, and start another run."
            )

    def _look_at_trained(self) -> set[str]:
        names = CanonicalNames(self._model)
        return {names(raw) for raw, p in self._model.named_parameters() if p.requires_grad}

    def _look(self) -> dict[str, Seen]:
        return {
            name: (buffer.dtype, buffer.shape, _bytes(local_part(buffer)))
            for name, buffer in persistent_buffers(self._model).items()
        }


def _bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes on the host; its own memory where that is possible."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
