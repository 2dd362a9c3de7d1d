"""The demo's job without the screen: held-out bits per byte from a fresh start to the merged model.

Runs `syncline demo --json` (control plane, sync service and two replicas as processes of this
machine) in a temporary folder. The last line it prints is one line of JSON:

    {"bits_per_byte_start", "bits_per_byte_end", "seconds", "tokens_per_second", "replicas",
     "rounds", "exposed_sync_share"}

`seconds` is the whole command: data, start of all processes, training, evaluation, export, and the
demo's sample.
`rounds` is how many rounds of pseudo-gradients each fragment had, that is, the revisions made by
outer steps; the steps of the synchronous phase before them are not counted.
`exposed_sync_share` is the part of training time in which the replicas waited for synchronisation.

    python benchmarks/demo.py [--job benchmarks/gpu.toml] [--set run.token_budget=500000 ...]

The demo as it is must end at 3.2 bits per held-out byte or less within 300 s; a sentence and exit
code 1 say so if it does not. With `--job` it is the same measurement of another job file, by
`syncline up`; there, and with `--set`, nothing is asked of the figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

BITS_PER_BYTE_MAX = 3.2
SECONDS_MAX = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description="The demo without the screen.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--job", metavar="FILE", help="a job file in place of the demo's")
    given = parser.parse_args()
    overrides = [word for pair in given.set for word in ("--set", pair)]
    what = ["up", given.job] if given.job else ["demo"]
    result = measured([*what, *overrides])
    print(json.dumps(result))
    missed = None if given.job or given.set else shortfall(result)
    if missed:
        sys.exit(missed)


def measured(arguments: list[str]) -> dict[str, Any]:
    """Run the command; return what the last line tells. Its failure is this program's."""
    command = [sys.executable, "-m", "syncline.cli", *arguments, "--json"]
    with tempfile.TemporaryDirectory(prefix="syncline-demo-") as folder:
        began = time.monotonic()
        said, exit_code = ended([*command, "--out", folder])
        seconds = time.monotonic() - began
    if exit_code:
        sys.exit(exit_code)
    summary = json.loads(said)
    return {
        "bits_per_byte_start": summary["bits_per_byte_start"],
        "bits_per_byte_end": summary["bits_per_byte_end"],
        "seconds": seconds,
        "tokens_per_second": summary["tokens_per_second"],
        "replicas": len(summary["replicas"]),
        "rounds": summary["rounds"],
        "exposed_sync_share": summary["exposed_sync_share"],
    }


def ended(command: list[str]) -> tuple[str, int]:
    """What it printed, and its exit code. Ctrl+C is the command's, which hears it, too."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while True:
            try:
                said, _ = process.communicate()
            except KeyboardInterrupt:
                continue
            return said, process.returncode


def shortfall(result: dict[str, Any]) -> str | None:
    """What the demo owes: one sentence; None if it holds what is asked of it."""
    bits, seconds = result["bits_per_byte_end"], result["seconds"]
    if bits is None or not bits <= BITS_PER_BYTE_MAX:
        return f"The merged model ends at {bits} bits per held-out byte, over {BITS_PER_BYTE_MAX}."
    if seconds > SECONDS_MAX:
        return f"The demo took {seconds:.0f} s, over {SECONDS_MAX:.0f} s."
    return None


if __name__ == "__main__":
    main()
