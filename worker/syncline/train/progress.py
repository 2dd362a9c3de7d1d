"""The port through which a trainer tells how far it is, and who listens behind it.

``bar`` is for people (lines, where no terminal shows one), ``json`` (one object a line) for
programs such as ``syncline up``, ``none`` for tests and for ranks other than 0. Telling never
decides anything.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Literal, Protocol, TextIO

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
)
from rich.text import Text

ProgressKind = Literal["bar", "json", "none"]

LINE_S = 10.0
"""Between two lines, where no terminal shows a bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Told once, before the first step."""

    run: str
    replica: str | None
    """None when training alone."""
    parameters: int
    tokens: int
    """Of the run: who joins one under way begins where that is."""
    tokens_total: int | None
    """The run's token budget; None: no end."""
    held_out_loss: float | None
    bits_per_byte: float | None
    """Of the held-out sample, at the start; None where it is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Told every few steps."""

    phase: str
    inner_step: int
    tokens: int
    """Of the run: committed by everyone, plus this replica's share since."""
    tokens_total: int | None
    loss: float
    """Mean since the last snapshot, nats per token."""
    bits_per_byte: float
    """The same, per byte of source text."""
    held_out_loss: float | None
    """Nats per token."""
    held_out_bits_per_byte: float | None
    lr: float
    grad_norm: float
    tokens_per_second: float
    """Of this replica."""
    mfu: float | None
    """Model flops a second, as a share of the devices' peak; None where one is not known."""
    round: int
    """Rounds merged since this replica joined."""
    revision: int
    exposed_sync_s: float
    exposed_sync_share: float
    """Of the time since the start."""
    bytes_up: int
    bytes_down: int
    stale: int
    """Pushes that came too late to count, over all fragments."""
    aged: int
    """Pushes that came late and counted with their age."""
    last_age: int
    """Of the last of these, in revisions."""
    seconds: float
    """Since the start, without pauses of the run."""
    eta_s: float | None
    """None where there is no saying, as while nobody's pushes count."""

    @property
    def held_out(self) -> str | None:
        """The held-out loss for people; None before the first one."""
        return with_unit(self.held_out_loss, self.held_out_bits_per_byte)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Told once, when training ended well. Losses are nats per token."""

    reason: Literal["budget", "stopped", "drained"]
    bits_per_byte_start: float | None
    held_out_local: float | None
    """Of this replica's own parameters before the last round; None if there was none."""
    bits_per_byte_local: float | None
    held_out_merged: float | None
    """Of the merged parameters (the only ones, when training alone); None where this replica left
    before the run's end, or no revision was committed."""
    bits_per_byte_merged: float | None
    tokens: int
    """Of the run."""
    own_tokens: int
    """Trained by this replica since it started."""
    seconds: float
    tokens_per_second: float
    """Of this replica, evaluations and waiting included."""
    exposed_sync_s: float
    exposed_sync_share: float
    bytes_up: int
    bytes_down: int
    rounds: int
    """Rounds merged since this replica joined."""
    revision: int
    inner_step: int
    skipped_steps: int
    """Inner steps left out because their loss or gradient was not finite."""
    exported: str | None
    """The folder of the exported model, when training alone."""

    @property
    def held_out(self) -> str | None:
        """The held-out loss of the replica's own parameters, for people."""
        return with_unit(self.held_out_local, self.bits_per_byte_local)


def with_unit(loss: float | None, bits_per_byte: float | None) -> str | None:
    """A loss for people: bits per byte, or nats per token where nobody counted the bytes."""
    if bits_per_byte is not None and math.isfinite(bits_per_byte):
        return f"{bits_per_byte:.3f} bits/byte"
    return None if loss is None else f"{loss:.3f} nats/token"


def as_fields(what: Start | Snapshot | Ending) -> dict[str, Any]:
    """Plain values for JSON; numbers that are not finite become None, since JSON has none such."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in asdict(what).items()
    }


class Listener(Protocol):
    """Somebody who wants to know."""

    def start(self, start: Start) -> None: ...

    def update(self, now: Snapshot) -> None: ...

    def close(self, ending: Ending | None = None) -> None:
        """No more will come; ``None`` when training did not end well. May be called twice."""
        ...


class NoListener:
    """Nobody listens."""

    def start(self, start: Start) -> None:
        pass

    def update(self, now: Snapshot) -> None:
        pass

    def close(self, ending: Ending | None = None) -> None:
        pass


class JsonListener:
    """One JSON object a line: events ``start``, ``progress`` and ``end``."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def start(self, start: Start) -> None:
        self._tell("start", start)

    def update(self, now: Snapshot) -> None:
        self._tell("progress", now)

    def close(self, ending: Ending | None = None) -> None:
        if ending is not None:
            self._tell("end", ending)

    def _tell(self, event: str, what: Start | Snapshot | Ending) -> None:
        self._out.write(json.dumps({"event": event, **as_fields(what)}, allow_nan=False) + "\n")
        self._out.flush()


class _Bar(Progress):
    """A bar, and beneath it lines of words, so that each fits 80 columns."""

    words = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(self.words, style="dim")


class BarListener:
    """A bar with lines of numbers, for people; a summary when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = _Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._task = self._bar.add_task("training", total=None, left="")
        self._told: Snapshot | None = None

    def start(self, start: Start) -> None:
        _say_start(self._console, start)
        total, done = start.tokens_total, start.tokens
        self._bar.update(self._task, description=start.run, total=total, completed=done)
        self._bar.start()

    def update(self, now: Snapshot) -> None:
        self._told = now
        self._bar.words = _words(now)
        self._bar.update(self._task, completed=now.tokens, left=_left(now.eta_s))

    def close(self, ending: Ending | None = None) -> None:
        self._bar.update(self._task, left="")
        if ending is not None:
            self._bar.update(self._task, completed=ending.tokens)
            if self._told is not None:
                self._bar.words = _words(_at_the_end(self._told, ending))
        if self._bar.live.is_started:
            self._bar.stop()
        _say_ending(self._console, ending)


class LineListener:
    """What the bar says, as a line now and then: for a log, or who reads one."""

    def __init__(self, console: Console) -> None:
        self._console, self._told_at_s = console, -math.inf

    def start(self, start: Start) -> None:
        _say_start(self._console, start)

    def update(self, now: Snapshot) -> None:
        at_s = time.monotonic()
        if at_s - self._told_at_s < LINE_S:
            return
        self._told_at_s = at_s
        total = "" if now.tokens_total is None else f" of {now.tokens_total:,}"
        words = (f"{now.tokens:,}{total} tokens", *_words(now).splitlines(), _left(now.eta_s))
        _say(self._console, "  ".join(filter(None, words)))

    def close(self, ending: Ending | None = None) -> None:
        _say_ending(self._console, ending)


def _say_start(console: Console, start: Start) -> None:
    who = f"{start.run}/{start.replica}" if start.replica else f"{start.run} (alone)"
    first = with_unit(start.held_out_loss, start.bits_per_byte)
    _say(console, f"{who}: {start.parameters:,} parameters, held-out {first} at the start")


def _say_ending(console: Console, ending: Ending | None) -> None:
    if ending is None:
        return
    result = with_unit(ending.held_out_merged, ending.bits_per_byte_merged)
    found = f"held-out {result}" if result is not None else ending.reason
    _say(console, f"{found} after {ending.tokens:,} tokens in {ending.seconds:,.0f} s")
    if ending.exported:
        _say(console, f"exported to {ending.exported}")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _at_the_end(told: Snapshot, ending: Ending) -> Snapshot:
    """The last words: what was told last may be some steps, a round and an evaluation old."""
    speed, mfu = ending.tokens_per_second, told.mfu
    if mfu is not None and told.tokens_per_second:
        mfu *= speed / told.tokens_per_second
    now = replace(
        told,
        phase="training",
        tokens_per_second=speed,
        mfu=mfu,
        revision=ending.revision,
        exposed_sync_s=ending.exposed_sync_s,
        exposed_sync_share=ending.exposed_sync_share,
        bytes_up=ending.bytes_up,
        bytes_down=ending.bytes_down,
    )
    loss, bits = ending.held_out_merged, ending.bits_per_byte_merged
    if loss is None:
        return now
    return replace(now, held_out_loss=loss, held_out_bits_per_byte=bits)


def _words(now: Snapshot) -> str:
    """What the bar says beneath itself, in lines that fit 80 columns."""
    training = [f"{now.tokens_per_second:,.0f} tokens/s"]
    if now.mfu is not None:
        training.append(f"MFU {now.mfu:.1%}")
    training.append(f"loss {with_unit(now.loss, now.bits_per_byte)}")
    if now.held_out is not None:
        training.append(f"held-out {now.held_out}")
    rest = [f"grad norm {now.grad_norm:.2g}"]
    if now.bytes_down:
        rest += [
            f"revision {now.revision}",
            f"sync {now.exposed_sync_share:.1%}, {now.exposed_sync_s:,.0f} s",
            f"up {_size(now.bytes_up)}",
            f"down {_size(now.bytes_down)}",
        ]
    if late := now.stale + now.aged:
        rest.append(f"late {late}")
    if now.phase != "training":
        rest.append(now.phase)
    return "\n".join("  ".join(line) for line in (training, rest))


def _size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


LEFT_S_MAX = 1e9
"""More than this is no forecast; and a timedelta holds no more than 8.6e13."""


def _left(eta_s: float | None) -> str:
    """The time left for the bar; "" where there is no saying.

    Not rich's own: that goes by the bar's last updates, over an outage too.
    """
    if eta_s is None or eta_s > LEFT_S_MAX:
        return ""
    return f"left {timedelta(seconds=round(eta_s))}"


def listener_for(kind: ProgressKind, out: TextIO, *, first: bool) -> Listener:
    """The listener that the command line asked for; only rank 0 has one. ``out`` is for lines."""
    if not first or kind == "none":
        return NoListener()
    if kind == "json":
        return JsonListener(out)
    console = Console(stderr=True)
    return BarListener(console) if console.is_terminal else LineListener(console)
