"""``syncline``: the door of the command line, and the one place where its errors end.

Every error of ours ends in one sentence and its exit code, every other fault in one sentence that
says how to see more, Ctrl+C in 130. A traceback is for SYNCLINE_DEBUG=1 alone. The commands are
loaded behind the door, so that Ctrl+C is heard while they are.
"""

from __future__ import annotations

import sys

from syncline.interrupts import INTERRUPTED, end
from syncline_proto.loading import Loading


def main() -> None:
    """Run the command line and end the process with its exit code."""
    with Loading():
        import syncline.cli.commands  # noqa: F401
    end(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; return the exit code."""
    from syncline.cli import output
    from syncline.cli.commands import app
    from syncline.faults import error_of, trace_if_asked
    from syncline_proto.errors import SynclineError

    try:
        app(arguments, prog_name="syncline")
    except SystemExit as early:
        return early.code if isinstance(early.code, int) else int(bool(early.code))
    except KeyboardInterrupt:
        return INTERRUPTED
    except SynclineError as problem:
        trace_if_asked()
        return output.error(problem)
    except Exception as fault:
        trace_if_asked()
        return output.error(error_of(fault))
    return 0
