"""The ranks of one replica, talking to one another.

A gloo group of its own carries a few numbers at a time, so that the ranks act on one decision and
no collective of FSDP meets ranks that disagree. Waits are polled, so that Ctrl+C is heard. Never
carries tensors of the model, and never unpickles.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from syncline.background import in_background
from syncline_proto.errors import ConfigError, ProcessFailed, SynclineError, from_code
from syncline_proto.settings import TimeoutSettings

POLL_S_MIN, POLL_S_MAX = 20e-6, 5e-3
"""Between two looks at a collective: short at first, since most end at once."""

ALONE_S = 2 * TimeoutSettings(profile="wan").give_up_s
"""How long the others wait for a rank that lives and does not come, where nobody says otherwise.

What it does meanwhile is its loop's own (an evaluation, a checkpoint), and nobody here knows how
long that takes; so it is longer than any wait of ours: twice the longest there is. A rank that dies
is noticed at once, by its connection.
"""

GONE = "Another rank of this replica is gone; see its log, then start the replica again."


class Ranks:
    """All processes of this replica; a single process talks to itself, for free.

    Invariant: every rank calls the same methods in the same order.
    """

    def __init__(self, *, alone_s: float = ALONE_S) -> None:
        """Join the group. Collective where ``torch.distributed`` is initialised.

        ``alone_s``: the longest wait for a rank that lives and does not come; and for one that is
        gone before all have met.

        Raises:
            ProcessFailed: one did not come in time.
        """
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.count = dist.get_world_size() if together else 1
        self.index = dist.get_rank() if together else 0
        self._group: dist.ProcessGroup | None = _met(alone_s) if together else None

    @property
    def first(self) -> bool:
        return self.index == 0

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return every rank's numbers, in the order of ranks."""
        if self._group is None:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.int64)
        every = [torch.empty_like(mine) for _ in range(self.count)]
        wait_for(dist.all_gather(every, mine, group=self._group, async_op=True))
        return [numbers.tolist() for numbers in every]

    def sum(self, number: int) -> int:
        """Return the sum over all ranks."""
        return sum(numbers[0] for numbers in self.gather([number]))

    def of_first(self, numbers: Sequence[int]) -> list[int]:
        """Return rank 0's numbers; all ranks give equally many."""
        if self._group is None:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64)
        wait_for(dist.broadcast(tensor, 0, group=self._group, async_op=True))
        return tensor.tolist()

    def share(self, make: Callable[[], Any]) -> Any:
        """Let rank 0 make something that JSON can carry, and return it on every rank.

        Raises:
            SynclineError: what ``make`` raised, on all ranks; where it raised anything else, that
                on rank 0, and ProcessFailed on the others.
        """
        if self._group is None:
            return make()
        text = b""
        if self.first:
            try:
                text = json.dumps({"value": make()}).encode()
            except BaseException as error:
                with suppress(ProcessFailed):  # what was raised here says more
                    self._text_of_first(_said_of(error))
                raise
        told = json.loads(self._text_of_first(text))
        if "value" not in told:
            raise from_code(told["code"], told["message"], told["setting"])
        return told["value"]

    def _text_of_first(self, text: bytes) -> bytes:
        """Return rank 0's text, which is not empty; the other ranks' is passed over."""
        (size,) = self.of_first([len(text)])
        tensor = torch.frombuffer(bytearray(text or bytes(size)), dtype=torch.uint8)
        wait_for(dist.broadcast(tensor, 0, group=self._group, async_op=True))
        return tensor.numpy().tobytes()

    def close(self) -> None:
        """Leave the group, if the process group still stands."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


def _met(alone_s: float) -> dist.ProcessGroup:
    """A group of all ranks. Made by a thread, since Ctrl+C is not heard in there."""
    began, longest = time.monotonic(), timedelta(seconds=alone_s)
    made = in_background(lambda: dist.new_group(backend="gloo", timeout=longest), "syncline-meet")
    try:
        group = made.future.result()
    except RuntimeError as error:
        is_late = isinstance(error, dist.DistError) or time.monotonic() - began >= alone_s
        if not is_late:
            raise
        raise ProcessFailed(GONE) from error
    assert isinstance(group, dist.ProcessGroup)
    return group


def is_gone(error: RuntimeError) -> bool:
    """Whether torch means by it that another rank is gone, or did not come in time."""
    of_store = dist.DistStoreError, dist.DistNetworkError
    return isinstance(error, of_store) or "/gloo/transport/" in str(error)


def check_together() -> None:
    """See that ranks which were started as one replica have met.

    Raises:
        ConfigError: each would be a replica of its own.
    """
    told = os.environ.get("WORLD_SIZE", "")
    count = int(told) if told.isdecimal() else 1
    if count > 1 and not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"WORLD_SIZE is {count}, and torch.distributed is not initialised, so each rank would "
            "be a replica of its own; call torch.distributed.init_process_group first, or remove "
            "WORLD_SIZE from the environment where that is meant."
        )


def _said_of(raised: BaseException) -> bytes:
    """What the other ranks are told to raise."""
    ours = raised
    if not isinstance(ours, SynclineError):
        ours = ProcessFailed("Rank 0 of this replica failed; see its log, then start it again.")
    what = {"code": ours.code, "message": ours.message, "setting": ours.setting}
    return json.dumps(what).encode()


def wait_for(work: dist.Work | None) -> None:
    """Return when a collective of gloo is done, and hear Ctrl+C meanwhile.

    Raises:
        ProcessFailed: another rank is gone, or did not come in time.
    """
    assert work is not None
    pause = POLL_S_MIN
    while not work.is_completed():
        time.sleep(pause)
        pause = min(2 * pause, POLL_S_MAX)
    try:
        work.wait()
    except RuntimeError as error:
        raise ProcessFailed(GONE) from error
