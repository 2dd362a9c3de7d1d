"""A few lines of Python as the two ranks of a replica: real processes that talk over gloo."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from syncline_testing.warm import warm

LIMIT_S = 300.0
"""A test that is not long has ended before."""

HEAD = """
import sys
from datetime import timedelta
import torch.distributed as dist
from syncline.ranks import Ranks

store, rank = sys.argv[1], int(sys.argv[2])
wait = timedelta(seconds=60)
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=wait)
ranks = Ranks(alone_s=60.0)
"""

# Ends as the trainer does: Python's own end with torch is a quarter of all that a rank computes.
TAIL = """
from syncline.interrupts import end

ranks.close()
dist.destroy_process_group()
end(0)
"""


def two_ranks(folder: Path, act: str) -> list[str]:
    """What each prints that does ``act``, which knows its ``rank`` and its ``ranks``.

    ``folder``: an empty one, in which they meet.
    """
    store, program = (folder / "store").as_uri(), HEAD + act + TAIL
    with ExitStack() as started:
        processes = [
            started.enter_context(warm("-c", program, store, str(rank))) for rank in range(2)
        ]
        ends = [process.communicate(timeout=LIMIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    return [out.strip() for out, _ in ends]
