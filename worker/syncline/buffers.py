"""Buffers that are saved with a model (DeepSeek-V3's routing bias): allowed while nothing changes.

Replicas exchange parameters. A buffer is equal everywhere only because it began so, which the
layout's hash of frozen tensors tells, and because it stays so, which is looked after here: at the
first inner step, at each boundary, and in the synchronous phase as often and at its end. Never
changes one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
        now = self._look().items()
        self._began = {name: (dtype, shape, bytearray(data)) for name, (dtype, shape, data) in now}

    def check_unchanged(self) -> None:
        """See that there are the same ones as then, each as it was. Collective.

        Raises:
            ConfigError: one came, is gone or has changed on some rank; on all ranks.
        """
        now, names = self._look(), sorted(self._began)
        others = sorted(now.keys() ^ self._began.keys())
        # The copy stands on the left: a bytearray compares at once, a memoryview byte by byte.
        changed = (i for i, name in enumerate(names) if self._began[name] != now.get(name))
        found = -1 if others else next(changed, len(names))
        first = min(index for (index,) in self._ranks.gather([found]))
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

    def _look(self) -> dict[str, Seen]:
        return {
            name: (buffer.dtype, buffer.shape, _bytes(local_part(buffer)))
            for name, buffer in persistent_buffers(self._model).items()
        }


def _bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes on the host; its own memory where that is possible."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
