"""What ``syncline doctor`` looks at, check by check, cheapest first.

Each check answers with findings and never raises for what it was made to find.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from syncline.cli import output
from syncline.cli.runs import damaged_runs
from syncline_proto.errors import SynclineError, Unreachable
from syncline_proto.names import AHEAD_S_MAX

if TYPE_CHECKING:
    from syncline.launch.client import OperatorClient
    from syncline_proto.rest import SyncEndpoint

Verdict = Literal["ok", "warn", "fail"]

GIB = 1 << 30
DISK_WARN_BYTES = 5 * GIB
DISK_FAIL_BYTES = GIB // 2
MEMORY_WARN_BYTES = 2 * GIB
MEMORY_FAIL_BYTES = GIB // 2
SKEW_WARN_S = 2.0
"""The Date header has whole seconds, so smaller differences cannot be seen."""
CALL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    verdict: Verdict
    what: str
    advice: str = ""
    """What to do; empty when all is well."""


def all_checks(
    folder: str, control: str, token: str | None, *, is_named: bool
) -> Iterator[Finding]:
    """Yield every finding, as soon as it is there; ``is_named``: somebody gave ``control``."""
    yield python()
    yield from packages()
    yield threads()
    yield disk(Path(folder))
    yield memory()
    yield gpu()
    yield from services(control, token, is_named=is_named)


def python() -> Finding:
    """Which one it is; an older one than this package needs cannot get here."""
    return Finding(check="python", verdict="ok", what=platform.python_version())


def packages() -> Iterator[Finding]:
    """What training needs, and what the services need if they are to run here."""
    from syncline.cli.about import installed

    for name in ("torch", "transformers"):
        version = installed(name)
        advice = "" if version else "Training needs it: pip install 'syncline[worker]'."
        what = version or "not installed"
        yield Finding(check=name, verdict="ok" if version else "fail", what=what, advice=advice)
    missing = [name for name in ("fastapi", "uvicorn", "sqlalchemy") if not installed(name)]
    if missing:
        yield Finding(
            check="services",
            verdict="warn",
            what=f"without {', '.join(missing)}",
            advice="syncline up and demo need them: pip install 'syncline[sync,control]'.",
        )


def threads() -> Finding:
    """More threads than cores make every replica on the machine slow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    what = f"{cores} cores, OMP_NUM_THREADS {wanted or 'not set'}"
    if cores and wanted.isdecimal() and int(wanted) > cores:
        advice = f"Set OMP_NUM_THREADS to at most {cores}."
        return Finding(check="threads", verdict="warn", what=what, advice=advice)
    return Finding(check="threads", verdict="ok", what=what)


def disk(folder: Path) -> Finding:
    """Room where the store, checkpoints and exports go."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        advice = "Choose a folder that you may write to with --folder."
        return Finding(check="disk", verdict="fail", what=f"{place} is not writable", advice=advice)
    free = shutil.disk_usage(place).free
    return _room(
        "disk", free, f"at {place}", DISK_WARN_BYTES, DISK_FAIL_BYTES, "Make room on this disk."
    )


def memory() -> Finding:
    """Memory that can be taken without pushing others out."""
    from syncline.launch.memory import meminfo

    values = meminfo()
    if not values:
        return Finding(check="memory", verdict="ok", what="this system does not say")
    free = values.get("MemAvailable", values.get("MemFree", 0))
    advice = "Close other programs, or train a smaller model."
    return _room("memory", free, "", MEMORY_WARN_BYTES, MEMORY_FAIL_BYTES, advice)


def _room(check: str, free: int, where: str, warn: int, fail: int, advice: str) -> Finding:
    what = f"{free / GIB:.1f} GiB free {where}".rstrip()
    verdict: Verdict = "fail" if free < fail else "warn" if free < warn else "ok"
    return Finding(
        check=check, verdict=verdict, what=what, advice="" if verdict == "ok" else advice
    )


def gpu() -> Finding:
    """Whether PyTorch sees a GPU; training on the CPU is fine for small models."""
    try:
        import torch
    except ImportError:
        return Finding(
            check="gpu", verdict="warn", what="unknown without torch", advice="Install torch."
        )
    if not torch.cuda.is_available():
        driver = Path("/proc/driver/nvidia/version").exists()
        if driver:
            advice = "A driver is loaded, but this PyTorch does not use it: install a CUDA build."
            return Finding(check="gpu", verdict="warn", what="not usable", advice=advice)
        return Finding(check="gpu", verdict="ok", what="none; training runs on the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding(check="gpu", verdict="ok", what=f"{len(names)}: {', '.join(sorted(set(names)))}")


def services(control: str, token: str | None, *, is_named: bool) -> Iterator[Finding]:
    """Control plane, clocks, sync services; or whether the port is free for a first start."""
    from syncline.launch.client import OperatorClient

    try:
        with OperatorClient(control, token, call_s=CALL_S) as client:
            yield from _control(client)
            yield from _sync_services(client, token)
    except Unreachable as away:
        yield _nobody(control, away, is_named=is_named)
    except SynclineError as problem:
        yield Finding(
            check="control plane",
            verdict="fail",
            what=problem.message,
            advice="Check --control and --token.",
        )


def _nobody(control: str, away: Unreachable, *, is_named: bool) -> Finding:
    """Tell a port that is free from one that somebody else holds.

    Where nobody named an address, a free port is one for a first start.
    """
    from syncline.launch.ports import LOOPBACK, require_free

    first, *others = control.split(",")
    address = urlsplit(first)
    if not others and address.hostname in (LOOPBACK, "localhost") and address.port:
        try:
            require_free(address.port, "--port")
        except SynclineError as taken:
            return Finding(
                check="control plane",
                verdict="fail",
                what=f"something that is no control plane holds port {address.port}",
                advice=taken.message,
            )
        if is_named:
            return Finding(
                check="control plane",
                verdict="fail",
                what=f"nothing answers at {control}",
                advice="Start it, or correct the address.",
            )
        return Finding(
            check="control plane",
            verdict="warn",
            what=f"none at {control}; port {address.port} is free",
            advice="Start one with syncline-control; syncline up and demo bring their own.",
        )
    return Finding(
        check="control plane",
        verdict="fail",
        what=away.message,
        advice="Check the address, the network and the firewall.",
    )


def _control(client: OperatorClient) -> Iterator[Finding]:
    before = time.time()
    server = client.server_time()
    after = time.time()
    if not client.ready():
        yield Finding(
            check="control plane",
            verdict="fail",
            what=f"{client.url} is up, but its database does not answer",
            advice="Look into its log, and at its --database.",
        )
        return
    found = client.runs()
    what = f"{client.url}, {output.counted(len(found), 'run')}"
    yield Finding(check="control plane", verdict="ok", what=what)
    for event in damaged_runs(client, found):
        advice = "Once it is mended, a round of every fragment ends this warning."
        yield Finding(check="run", verdict="warn", what=event.message, advice=advice)
    if server is None:
        return
    # The header was written somewhere in [before, after], and cut to whole seconds.
    skew = max(0.0, before - server - 1.0, server - after)
    if skew <= SKEW_WARN_S:
        yield Finding(check="clocks", verdict="ok", what=f"within {SKEW_WARN_S:.0f} s")
        return
    advice, verdict = "times in events and on the page look odd until then", "warn"
    if skew > AHEAD_S_MAX:
        advice, verdict = "rounds may be refused until then, so that no progress shows", "fail"
    advice = f"Set both clocks by NTP; {advice}."
    yield Finding(check="clocks", verdict=verdict, what=f"{skew:.0f} s apart", advice=advice)


def _sync_services(client: OperatorClient, token: str | None) -> Iterator[Finding]:
    from syncline.launch.probes import grpc_serving, is_refused

    found = client.sync_services()
    if not found:
        yield Finding(
            check="sync service",
            verdict="warn",
            what="none has announced itself",
            advice="Start one with syncline-sync --control, or nobody can train.",
        )
    shards = max((one.shards for one in found), default=0)
    for index in sorted(set(range(shards)) - {one.index for one in found}):
        yield Finding(
            check="sync service",
            verdict="fail",
            what=f"number {index} of {shards} (from 0) has never announced itself",
            advice=f"Start it with --shards {shards} --index {index}, or nobody can train.",
        )
    for one in found:
        name = f"{one.name} at {one.address}"
        verdict: Verdict = "fail"
        if not one.alive:
            what = f"{name} is away: it has ended, or is not heard of any more"
            again = _again(one, client.url)
            advice = f"Start it again {again}; replicas wait for it within their timeouts."
        elif is_refused(one.address):
            what = f"nobody listens at the address of {one.name}, {one.address}"
            advice = (
                f"It may just have ended: start it again {_again(one, client.url)}. If it runs, "
                "check the address that it announces (--advertise)."
            )
        elif not grpc_serving(one.address, CALL_S, token):
            what = f"{name} is alive, but its gRPC health does not answer here"
            advice = "Open the way to its port from here, and check the address it announces."
        else:
            verdict, what, advice = "ok", name, ""
        yield Finding(check="sync service", verdict=verdict, what=what, advice=advice)


def _again(one: SyncEndpoint, control: str) -> str:
    """Where and how a sync service is started again."""
    seat = f" --shards {one.shards} --index {one.index}" if one.shards > 1 else ""
    how = f"syncline-sync --control {control}{seat} --data FOLDER ..."
    return f"on its own folder and ports, as it was started before ({how})"
