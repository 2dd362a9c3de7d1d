"""What the replicas of a launch hold in memory at least, and the most that this machine has.

Refuses before anything starts what cannot fit: the system would else end processes in the middle
of it, and not always ours. What may fit is left to be tried. Reads /proc, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from syncline_proto.errors import ConfigError

TRAINED_BYTES = 4 + 4 + 8
"""For each parameter in fp32: weight, gradient, and the two moments of AdamW."""
EXCHANGED_BYTES = 2 + 1
"""For each parameter, always in the machine's own memory: the anchor (bf16, where values are
published so; else fp32) and what is pushed (in int8; more in other codecs)."""

ROOT = Path("/")
GIB = 1 << 30


def check_memory(parameters: int, replicas: int, *, on_gpus: bool, root: Path = ROOT) -> None:
    """Refuse replicas that need more memory than there is, counting nothing that they could spare.

        needed = replicas * parameters * (16 on the CPU, 0 on GPUs, + 3) bytes

    The ranks of a replica share it. Activations, what is in flight and the services come on top.
    ``root``: of the file system, for tests.

    Raises:
        ConfigError: it cannot fit.
    """
    there = machine_bytes(root)
    each = EXCHANGED_BYTES + (0 if on_gpus else TRAINED_BYTES)
    needed = replicas * parameters * each
    if there is None or needed <= there:
        return
    held = "an anchor and what is pushed"
    held = held if on_gpus else f"weights, gradients, AdamW's two moments, {held}"
    who = "1 replica" if replicas == 1 else f"{replicas} replicas"
    raise ConfigError(
        f"{who} of {parameters:,} parameters need {needed / GIB:,.1f} GiB of memory at least "
        f"({each} bytes each: {held}) and this machine has {there / GIB:,.1f} GiB; make the model "
        "smaller (model.config), or start fewer replicas (--set up.replicas=N)."
    )


def machine_bytes(root: Path = ROOT) -> int | None:
    """The memory that this process may have, swap included; None where the system does not say."""
    found = meminfo(root)
    if "MemTotal" not in found:
        return None
    return min((found["MemTotal"], *_limits(root))) + found.get("SwapTotal", 0)


def meminfo(root: Path = ROOT) -> dict[str, int]:
    """The kernel's figures in bytes, by name; none where there is no /proc."""
    try:
        lines = (root / "proc" / "meminfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines)
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def _limits(root: Path) -> Iterator[int]:
    """The limits of the control groups that this process is in, the outer ones too; in bytes."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    top = root / "sys" / "fs" / "cgroup"
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if not controllers:  # version 2
            tree, name = top, "memory.max"
        elif "memory" in controllers.split(","):
            tree, name = top / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = tree / own.lstrip("/")
        for one in (group, *group.parents):
            if one.is_relative_to(tree):
                try:
                    said = (one / name).read_text().strip()
                except OSError:
                    continue
                if said.isdecimal():  # and not "max"
                    yield int(said)
