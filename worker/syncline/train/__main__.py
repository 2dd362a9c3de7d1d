"""``python -m syncline.train JOB.toml``: one rank of one replica; the composition root.

Started as it is, or by torchrun. Whatever is wrong ends in one sentence on standard error and the
error's exit code, any other fault with exit code 1; what all ranks would say, only rank 0 does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from syncline.faults import IN_SHELLS, error_of, told, trace_if_asked
from syncline.interrupts import INTERRUPTED, end
from syncline.uncollected import uncollected
from syncline_proto.errors import ProcessFailed, SynclineError
from syncline_proto.loading import Loading

if TYPE_CHECKING:
    from syncline.train.loop import Trainer
    from syncline.train.progress import Ending, Listener


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    given = _parser().parse_args(arguments)
    first = os.environ.get("RANK", "0") == "0"
    try:
        _train(given, first=first)
    except SynclineError as error:
        # The other ranks fail of the same cause, or of this one's end: one sentence is enough.
        if first or not isinstance(error, ProcessFailed):
            sys.stderr.write(f"error: {told(error, IN_SHELLS)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as fault:
        trace_if_asked()
        problem = error_of(fault)
        sys.stderr.write(f"error: {problem.message}\n")
        return problem.exit_code
    return 0


def _train(given: argparse.Namespace, *, first: bool) -> None:
    with Loading():
        from syncline.settings import checked_name
        from syncline.train.config import JobConfig
        from syncline.train.logs import configure_logs
        from syncline.train.steps import check_resumable
        from syncline.wish import wished

    configure_logs(first=first)
    named = []
    if given.run is not None:
        named = [f"run.name={json.dumps(checked_name('run', given.run))}"]
    job = JobConfig.load(given.job, [*given.set, *named])
    # torch and transformers take seconds to import, and what is wrong should be told at once.
    device = job.train.anchor_device
    wish = wished(None, job.run.name, given.replica, None, {}, lambda *_: None, device)
    if given.resume:
        check_resumable(job, in_run=wish is not None)
    with Loading(), uncollected():
        from syncline.train.loop import Trainer
        from syncline.train.progress import as_fields, listener_for
        from syncline.train.ranks import joined_ranks

    with joined_ranks(mixed_precision=job.train.precision != "fp32") as ranks:
        # With --json standard output is for the end alone.
        lines = sys.stderr if given.json else sys.stdout
        listener = listener_for(given.progress, lines, first=ranks.first)
        try:
            trainer = Trainer(job, ranks, listener, replica=given.replica, resume=given.resume)
            if ranks.first and not trainer.keeps_its_model:
                sys.stderr.write("The model is not saved: set export.folder.\n")
            ending = _ran(trainer, listener, first=ranks.first)
        finally:
            listener.close()
        if given.json and ranks.first:
            sys.stdout.write(json.dumps(as_fields(ending), indent=2, allow_nan=False) + "\n")


def _ran(trainer: Trainer, listener: Listener, *, first: bool) -> Ending:
    """Train to the end; who interrupts it is told what is kept."""
    try:
        return trainer.run()
    except KeyboardInterrupt:
        listener.close()  # its bar is in the line
        if first and (left := trainer.left_by_interrupt):
            sys.stderr.write(f"{left}\n")
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m syncline.train",
        description="Train one replica of a run; alone, unless SYNCLINE_CONTROL is set.",
    )
    parser.add_argument("job", metavar="JOB.toml")
    parser.add_argument("--run", metavar="NAME", help="take part in this run (run.name)")
    parser.add_argument("--replica", metavar="NAME", help="this replica's name in the run")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a setting, such as train.micro_batch=4",
    )
    parser.add_argument(
        "--progress",
        choices=("bar", "json", "none"),
        default="bar",
        help="how to tell how it goes; json is one event a line on standard output",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print how it ended as one JSON object; progress goes to standard error",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    return parser


if __name__ == "__main__":
    end(main())
