"""A program of ours whose memory may be looked at when it rests: what is free has gone back.

The allocator keeps some of that, in pieces between what is in use: how much is chance, and more
than a leak of some seconds. ``Service.rests`` has a program started through here; when it gets
``GIVE_BACK`` its allocator gives the kernel what it can. Nothing else of it is changed.

    python -P at_rest.py MODULE [ARGUMENT...]
"""

from __future__ import annotations

import ctypes
import gc
import runpy
import signal
import sys

GIVE_BACK = signal.SIGUSR2


def _give_back(*_: object) -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    signal.signal(GIVE_BACK, _give_back)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")
