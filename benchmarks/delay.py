"""A link that takes its time: carries packets between two TUN devices, each a fixed while later.

    python delay.py NAMESPACE DEVICE NAMESPACE DEVICE SECONDS

Makes the devices, which last as long as it does, each in its network namespace; prints a line once
both are there, and relays until it is ended. How fast the link is, and what it drops, is for the
queues of the devices to say; this only delays.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES_MAX = 65_536
BATCH = 64
"""Packets that one direction takes before the other is looked at."""
QUEUE_MAX = 20_000
"""Packets under way in one direction; the rest is dropped."""


class Direction:
    """Packets on their way from one device to the other."""

    def __init__(self, source: int, target: int, delay_s: float) -> None:
        self.source, self._target, self._delay_s = source, target, delay_s
        self._under_way: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float | None:
        """When the next packet arrives; None: none is under way."""
        return self._under_way[0][0] if self._under_way else None

    def take(self) -> None:
        """Take in what the source has."""
        for _ in range(BATCH):
            try:
                packet = os.read(self.source, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if len(self._under_way) < QUEUE_MAX:
                self._under_way.append((time.monotonic() + self._delay_s, packet))

    def give(self) -> None:
        """Hand over what has arrived."""
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            try:
                os.write(self._target, self._under_way.popleft()[1])
            except OSError:
                continue  # the device is not up, or its queue is full: lost, as packets may be


def main(first: tuple[str, str], second: tuple[str, str], delay_s: float) -> None:
    near, far = device(*first), device(*second)
    print("ready", flush=True)
    ways = [Direction(near, far, delay_s), Direction(far, near, delay_s)]
    poll = select.poll()
    for way in ways:
        poll.register(way.source, select.POLLIN)
    while True:
        dues = [way.due for way in ways if way.due is not None]
        wait_s = min(dues) - time.monotonic() if dues else None
        poll.poll(None if wait_s is None else max(0.0, wait_s * 1e3))
        for way in ways:
            way.take()
            way.give()


def device(namespace: str, name: str) -> int:
    """Make a TUN device in a namespace, in which this process is then; its file, not blocking."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return file


if __name__ == "__main__":
    one, its, other, others, seconds = sys.argv[1:]
    main((one, its), (other, others), float(seconds))
