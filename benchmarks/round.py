"""One whole round of averaging, ours beside others': push, merge, commit, pull, into the model.

A 50M-parameter model in fp32, replicas and services in a process each. Beside each peer, one after
the other, ours takes turns with it, a round each, on the same model; each result is compared with
numpy's. A process may keep for its life the luck with memory that it began with, so on loopback all
are started several times. A round lasts from "the inner steps are done" until the last
participant's model holds the result. How each peer is driven stands in docs/benchmarks.md. The last
line is one line of JSON:

    {"round_s", "round_durable_s", "disk_s", "durable_over_slowest", "over_gloo",
     "over_torchft_diloco", "over_hivemind", "over_flower", ...}

`round_s` is ours with durability async, `round_durable_s` with durability commit: medians over all
of its rounds. `disk_s` is what the bare disk takes for what one of the latter writes, and
`durable_over_slowest` the durable round over that or over `round_s`, whichever is more. `over_...`
is the median of what ours took over what that peer took in the same turn; of several lives the
median of theirs. Null is what was not asked for or could not be measured, be it in one life, and
`missing` says why.

    python benchmarks/round.py [--network loopback|1gbit|100mbit] [--replicas N] [--codec C]
                               [--peers gloo,torchft,hivemind,flower] [--shards K] [--blocks B]
                               [--lives L] [--repeats R]

With two replicas and the whole model, on loopback: bf16 must take at most 1.0 of torchft's DiLoCo
round, int8 0.6, any codec at most 0.5 of hivemind's and 0.2 of Flower's; at 1 Gbit/s int8 at most
0.5 of gloo's. `durable_over_slowest` is at most 2.5 on loopback, 1.5 at 1 Gbit/s, 1.25 at 100
Mbit/s. A sentence and exit code 1 say so where it does not, and, with any options, where a peer
that was asked for is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, get_args

import bare_disk
import systems
from asked import at_least
from contest import CODECS, DURABLE, OURS, Contest, Rounds, is_slow
from interrupted import interruptible
from network import NETWORKS, NetworkUnavailable, network
from peers.environments import PINS, CannotInstall, default_folder, python_of
from syncline.launch.processes import Crew
from syncline_proto.settings import DownCodecName
from turns import Referee, Round, RoundFailed

PARAMETERS = 50_000_000
BLOCKS_PER_FRAGMENT = {"loopback": 7, "1gbit": 1, "100mbit": 1}
"""Of the model's 13. Where the processors are the slowest part a fragment's fixed cost counts: 7
make embedding, two fragments of blocks, and head. On a slower link more of them overlap better."""
LIVES = {"loopback": 5, "1gbit": 1, "100mbit": 1}
"""Where the processors are the slowest part a life as a whole may take a tenth more or less than
another, of ours more than of others': with int8 beside torchft 12 lives of one afternoon came to
0.53 to 0.65, and runs of three of them to 0.57, 0.57 and 0.62."""
REPEATS = {"loopback": 14, "1gbit": 7, "100mbit": 7}
"""In each life: rounds that are alike take 5 % more or less, of both."""
ENOUGH = 7
"""Where nobody says how many: of a peer that takes three times as long, or goes no further. The
former is in the first life only: no luck changes what comes of it."""
LIMIT_S = {"loopback": 300.0, "1gbit": 300.0, "100mbit": 900.0}
LEASE_S = 60.0
"""A machine so busy that heartbeats are late shows in the seconds; nobody need be lost for it."""
SLOWEST_MAX = {"loopback": 2.5, "1gbit": 1.5, "100mbit": 1.25}
"""Of a durable round, over the slower of the round and the disk. On loopback large fragments are
written only once they are merged, so that round and disk follow one another, which is 2; a quarter
of that is for noise. Where the link is the slowest part the disk is to show little; the last
fragment's commit is always waited for."""
RATIOS = {"torchft": "over_torchft_diloco"}
ALONE = "alone"


@interruptible()
def main() -> None:
    given = options().parse_args()
    try:
        result = measured(given)
    except (NetworkUnavailable, RoundFailed) as error:
        sys.exit(str(error))
    print(json.dumps(result))
    if not _counts(result):
        usual = f"--replicas 2 --parameters {PARAMETERS}"
        print(f"Nothing is asked of these ratios: they count with {usual}.", file=sys.stderr)
    if missed := shortfall(result):
        sys.exit(missed)


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(description="One whole round, ours beside others'.")
    parser.add_argument("--network", choices=NETWORKS, default="loopback")
    parser.add_argument("--replicas", type=at_least(2), default=2)
    parser.add_argument(
        "--codec",
        choices=CODECS,
        default="bf16",
        help="of pushes, and of pulls where those have it; not topk: it leaves most for later "
        "pushes, so that one round is no average to compare",
    )
    parser.add_argument("--peers", type=_peers, default=list(systems.PEERS))
    parser.add_argument(
        "--shards",
        type=at_least(1),
        default=2,
        help="sync services, of ours: each on a host of its own",
    )
    parser.add_argument(
        "--blocks",
        type=at_least(1),
        help="transformer blocks in a fragment, of ours; by default 7 on loopback, else 1",
    )
    parser.add_argument(
        "--repeats",
        type=at_least(1),
        help="rounds of each in each life, after one to warm up; by default 14 on loopback, or 7 "
        "beside a peer that takes three times as long, else 7",
    )
    parser.add_argument(
        "--lives",
        type=at_least(1),
        help="of all processes, one after the other; by default 5 on loopback, else 1; a peer that "
        "takes three times as long is in the first alone",
    )
    parser.add_argument("--parameters", type=at_least(1000), default=PARAMETERS)
    parser.add_argument("--peers-folder", type=Path, default=default_folder(), metavar="FOLDER")
    return parser


def _peers(text: str) -> list[str]:
    named = [word.strip() for word in text.split(",") if word.strip()]
    for name in named:
        if name not in systems.PEERS:
            raise argparse.ArgumentTypeError(
                f"{name} is no peer; those are {', '.join(systems.PEERS)}."
            )
    return list(dict.fromkeys(named))


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What was measured from a start of all processes to their end."""

    taken: dict[str, Rounds]
    """By the peer beside which it was."""
    failed: dict[str, str]
    """Peers that did not come through, and why."""
    disk_s: list[float]
    """What the bare disk takes for a durable round's files, each time."""
    disk_bytes: int


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Take all figures.

    Raises:
        NetworkUnavailable: the network could not be made.
        RoundFailed: a round of ours failed.
    """
    over = given.network
    repeats, count = given.repeats or REPEATS[over], given.lives or LIVES[over]
    pythons, missing = environments(given.peers, given.peers_folder)
    blocks = given.blocks or BLOCKS_PER_FRAGMENT[over]
    settings, notes = our_settings(over, given.replicas, given.codec, blocks)
    lives: list[Life] = []
    for number in range(1, count + 1):
        print(f"Life {number} of {count}:", file=sys.stderr, flush=True)
        peers = [name for name in given.peers if name not in missing and not slow(lives, name)]
        lives.append(a_life(given, peers, pythons, settings, repeats))
        missing |= lives[-1].failed
    return {
        **figures(lives, missing),
        "disk_bytes": lives[-1].disk_bytes,
        "network": over,
        "replicas": given.replicas,
        "shards": given.shards,
        "parameters": given.parameters,
        "lives": count,
        "repeats": repeats,
        **notes,
    }


def a_life(
    given: argparse.Namespace,
    peers: list[str],
    pythons: dict[str, Path],
    settings: dict[str, dict[str, Any]],
    repeats: int,
) -> Life:
    """Start all, let them take their turns, and end them.

    Raises:
        NetworkUnavailable: the network could not be made.
        RoundFailed: a round of ours failed.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="syncline-round-")))
        scene = systems.Scene(
            network=stack.enter_context(network(given.network, given.replicas + given.shards)),
            participants=given.replicas,
            parameters=given.parameters,
            folder=folder,
            gate=folder / "gate",
            pythons=pythons,
        )
        crew = stack.enter_context(Crew())
        referee = stack.enter_context(Referee(scene.gate, given.replicas, LIMIT_S[given.network]))
        contest = Contest(scene, crew, referee, given.codec)
        contest.start_ours(settings, given.shards)
        enough = given.repeats or ENOUGH
        taken = {peer: contest.beside(peer, repeats, enough) for peer in peers}
        if not any(taken.values()):
            taken[ALONE] = contest.beside(None, repeats, enough)
        sizes = bare_disk.round_sizes(folder, DURABLE)
        return Life(
            taken=taken,
            failed=contest.failed,
            disk_s=[bare_disk.write_s(folder / "bare", sizes) for _ in range(repeats)],
            disk_bytes=sum(sizes),
        )


def slow(lives: Sequence[Life], peer: str) -> bool:
    """Whether a peer was so slow in an earlier life that no luck changes what comes of it."""
    taken = [its for life in lives if (its := life.taken.get(peer))]
    return any(is_slow(its[peer], its[OURS]) for its in taken)


def environments(peers: list[str], folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """The pythons of the peers that need one, and why some have none."""
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for peer in peers:
        if peer in PINS:
            try:
                pythons[peer] = python_of(peer, folder)
            except CannotInstall as error:
                missing[peer] = str(error)
    return pythons, missing


def our_settings(
    over: str, replicas: int, codec: str, blocks: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The settings of each run of ours, by system, and what the JSON says of them."""
    down = codec if codec in get_args(DownCodecName) else "bf16"
    settings: dict[str, Any] = {
        "strategy": "diloco",
        "sync_every": 1,
        "blocks_per_fragment": blocks,
        "min_replicas": replicas,
        "codec": {"up": codec, "down": down},
        "timeouts": {"profile": "wan" if over == "100mbit" else "lan", "lease": LEASE_S},
    }
    notes: dict[str, Any] = {
        "codec_up": codec,
        "codec_down": down,
        "durability": "async",
        "blocks_per_fragment": blocks,
    }
    return {OURS: {**settings, "durability": "async"}, DURABLE: settings}, notes


def figures(lives: Sequence[Life], missing: dict[str, str]) -> dict[str, Any]:
    """Medians, and ratios to each peer; null to one that is missing, or was not asked for."""
    all_of: Rounds = {}
    for rounds in (its for life in lives for its in life.taken.values()):
        for name, its in rounds.items():
            all_of.setdefault(name, []).extend(its)
    seconds = {name: median(one.seconds for one in its) for name, its in all_of.items()}
    disk_s = median(each for life in lives for each in life.disk_s)
    ratios: dict[str, float | None] = {}
    for peer in systems.PEERS:
        beside = [life.taken[peer] for life in lives if peer in life.taken and peer not in missing]
        over = [_over(both[OURS], both[peer]) for both in beside]
        ratios[RATIOS.get(peer, f"over_{peer}")] = median(over) if over else None
    return {
        "round_s": seconds[OURS],
        "round_durable_s": seconds[DURABLE],
        "disk_s": disk_s,
        "durable_over_slowest": seconds[DURABLE] / max(seconds[OURS], disk_s),
        **ratios,
        "seconds": seconds,
        "off": {name: max(one.off for one in its) for name, its in all_of.items()},
        "missing": missing,
    }


def _over(ours: list[Round], theirs: list[Round]) -> float:
    """Of those of the same turn: what slows a machine down for a while slows both."""
    return median(mine.seconds / its.seconds for mine, its in zip(ours, theirs, strict=True))


def shortfall(result: dict[str, Any]) -> str | None:
    """What the round owes; None if every peer was measured, and it holds what is asked of it."""
    missing = result["missing"]
    lacks = f"Asked for and not measured: {', '.join(missing)}." if missing else None
    return " ".join(filter(None, [lacks, _too_slow(result)])) or None


def _counts(result: dict[str, Any]) -> bool:
    """Whether anything is asked of its figures."""
    return result["parameters"] == PARAMETERS and result["replicas"] == 2


def _too_slow(result: dict[str, Any]) -> str | None:
    if not _counts(result):
        return None
    asked = {"durable_over_slowest": SLOWEST_MAX[result["network"]]}
    both = {result["codec_up"], result["codec_down"]}
    if result["network"] == "loopback":
        asked |= {"over_hivemind": 0.5, "over_flower": 0.2}
        asked |= {"over_torchft_diloco": 1.0} if both == {"bf16"} else {}
        asked |= {"over_torchft_diloco": 0.6} if both == {"int8"} else {}
    elif result["network"] == "1gbit" and both == {"int8"}:
        asked |= {"over_gloo": 0.5}
    over = [
        f"{name} is {result[name]:.2f}, over {limit:g}"
        for name, limit in asked.items()
        if result[name] is not None and result[name] > limit
    ]
    return f"The round is too slow: {'; '.join(over)}." if over else None


if __name__ == "__main__":
    main()
