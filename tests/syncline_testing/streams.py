"""A device that does what it is told late: two streams, each in order, between them in any order.

Its memory is the CPU's. What is told to it inside ``told`` waits in a stream, until the device goes
on by chance or somebody waits for it; so whatever no event orders happens in the worst order sooner
or later. Memory that was lent on the second stream is somebody else's there as soon as its holder
lets go of it, as of an allocator that keeps it for that stream: its next act there spoils it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

_CHANGING = ("copy_", "add_", "sub_", "neg_", "lerp_", "mul_")
SPOILT = 0xFF
"""In every byte: NaN, of whatever type it is read."""
_MAIN, _SIDE = "main", "side"


class Device:
    """The device, and as ``syncline.streamed.Streams`` what it is told by."""

    def __init__(self, random: Random, zeal: float) -> None:
        """``zeal``: how readily it goes on by itself, from 0 to below 1."""
        self._random, self._zeal, self._current = random, zeal, _MAIN
        self._told: dict[str, deque[Callable[[], bool]]] = {_MAIN: deque(), _SIDE: deque()}
        """Each does its part and says True, or cannot yet."""
        self._count = {_MAIN: 0, _SIDE: 0}
        self._done = {_MAIN: 0, _SIDE: 0}
        self._memory: dict[int, torch.UntypedStorage] = {}
        self.lent = self.lent_peak = 0
        """Bytes that it gave to who asked for memory on the second stream, and has not back."""

    def own(self, tensor: Tensor) -> None:
        """It lies on the device."""
        storage = tensor.untyped_storage()
        self._memory[storage.data_ptr()] = storage

    def lend(self, room: Tensor) -> None:
        """It is of the device, and somebody's until he lets go of it."""
        self.own(room)
        self.lent += room.nbytes
        self.lent_peak = max(self.lent_peak, self.lent)
        weakref.finalize(room, self._take_back, self.alias(room), room.nbytes)

    def _take_back(self, memory: Tensor, size: int) -> None:
        self.lent -= size
        with self.side(), _disable_current_modes():
            self.tell(lambda: memory.fill_(SPOILT) is not None)

    def alias(self, tensor: Tensor) -> Tensor:
        """The same memory, which keeps nobody who holds it alive."""
        memory, lies = tensor.untyped_storage(), (tensor.storage_offset(), tensor.size())
        return torch.empty(0, dtype=tensor.dtype).set_(memory, *lies, tensor.stride())  # pyright: ignore[reportArgumentType]

    def owns(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._memory

    @contextmanager
    def told(self) -> Iterator[None]:
        """Inside, what concerns the device's memory is done late."""
        with _Telling(self):
            yield

    def tell(self, act: Callable[[], bool]) -> None:
        self._told[self._current].append(act)
        self._count[self._current] += 1
        while self._random.random() < self._zeal and self.go_on():
            pass

    def go_on(self) -> bool:
        """Do one thing, of any stream that can go on; whether there was one."""
        ways = [name for name, waiting in self._told.items() if waiting]
        self._random.shuffle(ways)
        with _disable_current_modes():  # else it would be told again
            for name in ways:
                if self._told[name][0]():
                    self._told[name].popleft()
                    self._done[name] += 1
                    return True
        return False

    def run_ahead(self, stream: str) -> None:
        """Do what one stream can before the other goes on."""
        while self._told[stream] and self._told[stream][0]():
            self._told[stream].popleft()
            self._done[stream] += 1

    def finish(self) -> None:
        """Do all that is left."""
        while self.go_on():
            pass
        assert self._done == self._count, "the streams wait for one another"

    @contextmanager
    def side(self) -> Iterator[None]:
        before, self._current = self._current, _SIDE
        try:
            yield
        finally:
            self._current = before

    def event(self) -> Event:
        return Event(self, self._current, self._count[self._current])

    @property
    def is_on_side(self) -> bool:
        return self._current == _SIDE

    @property
    def progress(self) -> int:
        """How many things it has done."""
        return sum(self._done.values())

    @property
    def is_behind(self) -> bool:
        """Whether it was told what it has not done."""
        return self._done != self._count

    def has_done(self, stream: str, count: int) -> bool:
        return self._done[stream] >= count


class Event:
    """A point of a stream."""

    def __init__(self, device: Device, stream: str, count: int) -> None:
        self._device, self._stream, self._count = device, stream, count

    def query(self) -> bool:
        return self._device.has_done(self._stream, self._count)

    def wait(self) -> None:
        self._device.tell(self.query)

    def synchronize(self) -> None:
        while not self.query():
            assert self._device.go_on(), "nothing that was told leads there"


class _Telling(TorchDispatchMode):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name == "empty" and self._device.is_on_side:
            room = func(*args, **given)
            self._device.lend(room)
            return room
        tensors = [one for one in tree_leaves((args, given)) if isinstance(one, Tensor)]
        if not any(self._device.owns(one) for one in tensors):
            return func(*args, **given)
        if name in _CHANGING:
            late = tree_map_only(Tensor, self._device.alias, (args, given))
            self._device.tell(lambda: func(*late[0], **late[1]) is not None)
            return args[0]
        if name == "_to_copy":
            out = torch.empty_like(args[0], dtype=given.get("dtype", args[0].dtype))
            self._device.own(out)
            late = self._device.alias(args[0])
            self._device.tell(lambda: out.copy_(late) is not None)
            return out
        return func(*args, **given)  # a view


class Prompt:
    """A device that has done what it is told, as its streams and as their events."""

    @contextmanager
    def side(self) -> Iterator[None]:
        yield

    def event(self) -> Prompt:
        return self

    def query(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def synchronize(self) -> None:
        pass
