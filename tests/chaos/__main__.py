"""``python -m chaos``: the long form. It ends in one line of JSON with the figures."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from chaos.storm import Figures, Storm
from syncline_proto.settings import CodecName
from syncline_testing.cluster import Cluster


def storm_in(folder: Path, asked: argparse.Namespace) -> Figures:
    """A storm in which rounds close without those who sleep, too; it tells how it goes."""
    with Cluster(folder, shards=asked.shards) as cluster:
        storm = Storm(
            cluster,
            asked.seed,
            asked.kills,
            quiet=0.1,
            stall=0.008,
            rebirth=0.004,
            deadline_s=4.0,
            durability=asked.durability,
            quorum=asked.quorum,
            late=asked.late,
            strategy=asked.strategy,
            down=asked.down,
            up=asked.up,
            tell=lambda line: print(line, flush=True),
        )
        figures = storm.run()
    for key in storm.ledger.lost():
        print(f"lost: {key}")
    return figures


def main() -> int:
    """Exit code 0 if all is well, 1 if not; then the files of the services are still there."""
    asked = options().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {asked.seed}, files and logs in {folder}", flush=True)
    figures = storm_in(folder, asked)
    print(json.dumps(asdict(figures)))
    if figures.lost or figures.twice:
        return 1
    shutil.rmtree(folder)
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="at least 2")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--durability", choices=["commit", "async"], default="commit")
    parser.add_argument("--shards", type=int, default=1, help="sync services that share the run")
    parser.add_argument("--quorum", type=int, help="rounds close with so many of the 3 replicas")
    parser.add_argument("--late", type=int, help="rounds that a push may be late and count")
    parser.add_argument("--strategy", choices=["edit", "async"], default="edit")
    parser.add_argument("--down", choices=["bf16", "int8"], default="bf16", help="codec of pulls")
    parser.add_argument(
        "--up", choices=get_args(CodecName), help="of all pushes; else each its own"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
