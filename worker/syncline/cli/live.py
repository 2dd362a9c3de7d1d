"""The screen of ``demo`` and ``up``: live on a terminal, a line now and then in a log.

It only shows; what is shown is ``launch.view``'s business.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import itemgetter
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from syncline.cli import output
from syncline.cli.window import Window
from syncline.launch.view import ReplicaNow, Result, Screen, View
from syncline.launch.words import way_on
from syncline.train.progress import Snapshot, with_unit

LINE_S = 10.0
"""Between two lines where there is no terminal."""

BAR_WIDTH = 36

BITS, TRAINING_BITS = ">bits/byte", ">training bits/byte"
"""Columns that stay away where the losses are nats per token alone."""


class RunScreen(Screen, Protocol):
    """A screen for one launch, as a context manager."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class LiveScreen:
    """A picture that is drawn anew four times a second, below what has been said."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="dim"))

    def update(self, view: View) -> None:
        if self._live is None:
            # Not earlier, so that the bar of data preparation has the screen to itself.
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        self._live.update(Window(picture(view)))


class LineScreen:
    """One line of text every ten seconds, for logs and for pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, soft_wrap=True)

    def update(self, view: View) -> None:
        now = time.monotonic()
        if view.speaking and now - self._told_at >= LINE_S:
            self._told_at = now
            self.say(line(view))


def screen_for(as_json: bool) -> RunScreen:
    """Return the screen that fits; with JSON it speaks on standard error."""
    console = output.console(stderr=as_json)
    return LiveScreen(console) if console.is_terminal else LineScreen(console)


def line(view: View) -> str:
    """Return how it goes in one line."""
    left = _paused(view) if view.is_paused else f"left {output.duration(view.eta_s)}"
    return "  ".join(
        (
            f"{output.count(view.tokens)} of {output.count(view.tokens_total)} tokens",
            _speed(view),
            *(_losses(view.replicas[name], now) for name, now in view.speaking.items()),
            f"revision {view.revision}",
            f"exposed sync {output.share(view.exposed_sync_share)}",
            left,
        )
    )


def _speed(view: View) -> str:
    """Of now; once nobody trains any more, of what was trained."""
    trained = view.trained_per_second
    if trained is None:
        return f"{output.count(view.tokens_per_second)} tokens/s"
    return _was_trained(trained)


def _was_trained(tokens_per_second: float) -> str:
    if not tokens_per_second:
        return "nothing was trained"
    return f"{output.count(tokens_per_second)} tokens/s while it trained"


def _losses(replica: ReplicaNow, now: Snapshot) -> str:
    """What a replica's row of the picture tells of its losses, under the same words."""
    told = [f"loss {output.decimals(now.loss)}", f"held-out {replica.held_out or '–'}"]
    if now.bits_per_byte is not None:
        told.insert(1, f"training bits/byte {output.decimals(now.bits_per_byte)}")
    return f"{replica.name}: {', '.join(told)}"


def picture(view: View) -> RenderableType:
    """Return how it goes as a screen."""
    page = Text.assemble(("live page: ", "dim"), view.page)
    title = Text(view.run, style="bold")
    paused = [Text(_paused(view), style="yellow")] if view.is_paused else []
    return Group("", title, page, _bar(view), *paused, "", _replicas(view), "", *_sums(view), "")


def ending(result: Result, page: str) -> RenderableType:
    """Return how it ended: a line for each replica, and one for the merged model.

    ``page``: where it was, for a result that outlives its services.
    """
    columns = ("model", ">held-out loss", BITS, ">tokens", ">seconds", ">exposed sync")
    rows: list[tuple[object, ...]] = [
        (
            name,
            output.decimals(end.held_out_local, 4),
            output.decimals(end.bits_per_byte_local),
            output.count(end.own_tokens),
            f"{end.seconds:.0f}",
            output.share(end.exposed_sync_share),
        )
        for name, end in result.replicas.items()
    ]
    without_end = (("failed", result.failed), ("kicked", result.kicked), ("left", result.left))
    rows += [(name, how, *[None] * 4) for how, names in without_end for name in names]
    rows.append(
        (
            Text("merged", style="bold"),
            Text(output.decimals(result.held_out_merged, 4), style="bold"),
            Text(output.decimals(result.bits_per_byte_end), style="bold"),
            output.count(result.tokens),
            f"{result.seconds:.0f}",
            output.share(result.exposed_sync_share),
        )
    )
    steps = result.synchronous_steps
    unseen = f"not known of the merged model: no replica evaluated revision {result.revision}"
    facts = [
        ("before", with_unit(result.held_out_start, result.bits_per_byte_start) or "–"),
        *([("held-out", unseen)] if result.export and result.held_out_merged is None else []),
        ("rounds", f"{result.rounds} of each fragment"),
        *([("synchronous steps", f"{steps}, before the first round")] if steps else []),
        ("excluded", f"{result.exclusions} pushes"),
        ("seconds of merged", "since the launch: with start, loading and pauses"),
        ("speed", _was_trained(result.tokens_per_second)),
        ("page", result.page or f"{page} (gone with the services; --keep keeps them)"),
        ("folder", result.folder),
        ("model", result.export or "none: no round was committed"),
    ]
    spare = ("seconds", "exposed sync", "tokens")
    losses = (result.bits_per_byte_start, result.bits_per_byte_end)
    is_counted = any(loss is not None for loss in losses) or result.held_out_start is None
    made = _table(columns, rows, spare, "" if is_counted else BITS)
    return Group("", made, "", output.facts(facts), "")


def _paused(view: View) -> str:
    """What goes on a paused run; a launch's control plane is seldom where commands look for one."""
    control = view.page.rstrip("/")
    return f"paused; {way_on(view.run)} (--control {control})"


def _counts_down(view: View) -> bool:
    return not (view.is_paused or view.has_ended)


def _bar(view: View) -> RenderableType:
    # The words take what they need, and the bar what they leave.
    beside = (Column(no_wrap=True) for _ in range(3))
    made = Table.grid(Column(max_width=BAR_WIDTH), *beside, padding=(0, output.GAP, 0, 0))
    total = view.tokens_total
    words = (
        f"{output.count(view.tokens)} of {output.count(total)} tokens"
        if total
        else f"{output.count(view.tokens)} tokens"
    )
    made.add_row(
        ProgressBar(total=total or 1, completed=view.tokens if total else 0),
        words,
        _speed(view),
        Text(f"{output.duration(view.eta_s)} left" if _counts_down(view) else "", style="dim"),
    )
    return made


def _replicas(view: View) -> RenderableType:
    columns = (
        *("replica", "phase", ">inner step", ">revision", ">loss", TRAINING_BITS),
        *(">held-out", ">tokens/s", ">exposed sync"),
    )
    spare = (
        *("training bits/byte", "inner step", "revision", "exposed sync"),
        *("loss", "tokens/s", "phase"),
    )
    rows = [_row(view, replica) for replica in view.replicas.values()]
    spoken = [r.latest for r in view.replicas.values() if r.latest is not None]
    is_counted = not spoken or any(now.bits_per_byte is not None for now in spoken)
    return _table(columns, rows, spare, "" if is_counted else TRAINING_BITS)


def _table(
    columns: Sequence[str], rows: Sequence[tuple[object, ...]], spare: Sequence[str], without: str
) -> RenderableType:
    """A table ``without`` one of its columns; "": with all."""
    kept = itemgetter(*(i for i, name in enumerate(columns) if name != without))
    narrow = [name for name in spare if name != without.removeprefix(">")]
    return output.table(kept(columns), map(kept, rows), empty="", spare=narrow)


def _row(view: View, replica: ReplicaNow) -> tuple[object, ...]:
    now, last = replica.latest, replica.last_words
    if last is None:
        return (replica.name, view.phase(replica), *[None] * 7)
    return (
        replica.name,
        view.phase(replica),
        last.inner_step,
        last.revision,
        output.decimals(now and now.loss),
        output.decimals(now and now.bits_per_byte),
        replica.held_out,
        output.count(view.pace(replica)),
        output.share(last.exposed_sync_share),
    )


def _sums(view: View) -> list[RenderableType]:
    """What holds for the run, in lines short enough for every window."""
    steps = f" after {view.synchronous_steps} synchronous steps" if view.synchronous_steps else ""
    exposed = output.share(view.exposed_sync_share)
    lines = [f"rounds {view.rounds} of each fragment{steps}   exposed sync {exposed}"]
    state = view.state
    if state is not None:
        alive = f"{state.replicas_alive} alive, {state.replicas_taking_part} taking part"
        lines.append(f"replicas {alive}   pushes excluded {state.exclusions}")
    return [Text(line, style="dim") for line in lines]
