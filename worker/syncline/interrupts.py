"""Ctrl+C amid what may not be left half done, and at the end: no traceback, whatever it was amid.

Imports next to nothing, since what comes before it cannot be interrupted tidily.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from syncline_proto.loading import INTERRUPTED, break_off


class Deferred:
    """Inside, Ctrl+C waits for the end, and is raised there: for what may not be left half done.

    C code, for instance, may abort when it is interrupted. SIGTERM waits, too, where it is handled
    as Ctrl+C is. A second signal ends the process at once. Others' handlers stay. Main thread only.
    """

    def __enter__(self) -> None:
        self._is_asked = False
        stops = (signal.SIGINT, signal.SIGTERM)
        self._ours = [n for n in stops if signal.getsignal(n) is signal.default_int_handler]
        for number in self._ours:
            signal.signal(number, self._ask)

    def __exit__(self, *_: object) -> None:
        for number in self._ours:
            signal.signal(number, signal.default_int_handler)
        if self._is_asked:
            raise KeyboardInterrupt

    def _ask(self, *_: object) -> None:
        if self._is_asked:
            break_off()
        self._is_asked = True


def end(code: int) -> None:
    """End the process with a code that is decided: Ctrl+C only ends what still blocks.

    With torch loaded Python's own end takes a while. It may also make a SIGABRT of a training that
    went well, before Python 3.14: threads of gloo outlive their group, and none may let go of a
    tensor while the interpreter ends. And after a Ctrl+C amid Python that C code ran, as modules do
    that load, it ends by SIGINT, whatever the code. So in both it is left out, and with it what was
    registered with atexit and what files still open have buffered.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        if "torch" in sys.modules or code == INTERRUPTED:
            os._exit(code)
    sys.exit(code)  # which also tells where the last words could not be written
