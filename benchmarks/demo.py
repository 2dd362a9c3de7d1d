"""The demo's job without the screen: held-out bits per byte from a fresh start to the merged model.

Runs `syncline demo --json` (control plane, sync service and two replicas as processes of this
machine) in a temporary folder. The last line it prints is one line of JSON:

    {"bits_per_byte_start", "bits_per_byte_end", "seconds", "tokens_per_second", "replicas",
     "rounds", "exposed_sync_share"}

`seconds` is the whole command: data, start of all processes, training, evaluation, export, sample.
`rounds` is how many rounds of pseudo-gradients each fragment had, that is, the revisions made by
outer steps; the steps of the synchronous phase before them are not counted.
`exposed_sync_share` is the part of training time in which the replicas waited for synchronisation.

    python benchmarks/demo.py [--job benchmarks/gpu.toml] [--set run.token_budget=500000 ...]

With `--job` it is the same measurement of another job file, by `syncline up`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="The demo without the screen.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--job", metavar="FILE", help="a job file in place of the demo's")
    given = parser.parse_args()
    overrides = [word for pair in given.set for word in ("--set", pair)]
    what = ["up", given.job] if given.job else ["demo"]
    command = [sys.executable, "-m", "syncline.cli", *what, "--json", *overrides]
    with tempfile.TemporaryDirectory(prefix="syncline-demo-") as folder:
        done = subprocess.run(
            [*command, "--out", str(Path(folder))], stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.returncode)
    summary = json.loads(done.stdout)
    keys = ("bits_per_byte_start", "bits_per_byte_end", "seconds", "tokens_per_second")
    result = {key: summary[key] for key in keys}
    result["replicas"] = len(summary["replicas"])
    result["rounds"] = summary["rounds"]
    result["exposed_sync_share"] = summary["exposed_sync_share"]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
