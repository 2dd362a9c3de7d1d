"""The life of a run as a transition table, and what may change in its settings.

Pure. What is not in the table is refused; asking again for what is already so is allowed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from syncline_proto.differing import FIXED, in_words
from syncline_proto.errors import ConfigError, InvalidRequest, RunConflict
from syncline_proto.rest import RunState, WaitsFor
from syncline_proto.settings import LIVE, RunSettings, changed

ENDED = frozenset({RunState.STOPPED, RunState.FINISHED})


class Act(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    FINISH = "finish"


LIFE: dict[tuple[RunState, Act], RunState] = {
    (RunState.RUNNING, Act.PAUSE): RunState.PAUSED,
    (RunState.RUNNING, Act.RESUME): RunState.RUNNING,
    (RunState.RUNNING, Act.STOP): RunState.STOPPED,
    (RunState.RUNNING, Act.FINISH): RunState.FINISHED,
    (RunState.PAUSED, Act.PAUSE): RunState.PAUSED,
    (RunState.PAUSED, Act.RESUME): RunState.RUNNING,
    (RunState.PAUSED, Act.STOP): RunState.STOPPED,
    (RunState.PAUSED, Act.FINISH): RunState.FINISHED,
    (RunState.STOPPED, Act.STOP): RunState.STOPPED,
    (RunState.FINISHED, Act.FINISH): RunState.FINISHED,
}


def after(state: RunState, act: Act, run: str) -> RunState:
    """Return the state that follows.

    Raises:
        RunConflict: the table has no such transition.
    """
    try:
        return LIFE[state, act]
    except KeyError:
        raise RunConflict(
            f"Run {run} is {state}, so nobody can {act} it; start another run."
        ) from None


def waits_for(state: RunState, alive: int, least: int) -> WaitsFor | None:
    """Return what a run with so many live replicas needs to go on; None: nothing, or it is over.

    With fewer than ``least``, which are its ``min_replicas``, no round closes.
    """
    if state is RunState.PAUSED:
        return "resume"
    return "replicas" if state is RunState.RUNNING and alive < least else None


def crossed(
    run: str, state: RunState, before: int, alive: int, least: int
) -> tuple[str, str] | None:
    """Return the event, and its sentence, of a run that has too few replicas now, or enough again.

    None: it is as it was, or over. Where one is enough nobody is left to wait: that it is idle is
    told otherwise.
    """
    if state in ENDED or least == 1 or (before < least) is (alive < least):
        return None
    if alive < least:
        more = least - alive
        return "run.waits", (
            f"{run} has {alive} of its min_replicas {least}, so no round closes: who has pushed "
            f"waits until {more} more {'joins' if more == 1 else 'join'}."
        )
    return "run.goes_on", f"{run} has its min_replicas {least}: rounds close, and it goes on."


def told(run: str, act: Act, token_budget: int | None) -> str:
    """Return the sentence that tells of an act, and why it was taken."""
    match act:
        case Act.PAUSE:
            return f"Run {run} was paused; `syncline runs resume {run}` goes on."
        case Act.RESUME:
            return f"Run {run} was resumed."
        case Act.STOP:
            return f"Run {run} was stopped by an operator."
        case Act.FINISH if token_budget:
            return f"Run {run} is finished: its token budget of {token_budget:,} is committed."
        case Act.FINISH:
            return f"Run {run} is finished: a replica said so."


def patched(settings: RunSettings, patch: dict[str, Any]) -> RunSettings:
    """Return the settings with a live change applied.

    Raises:
        InvalidRequest: a key may not change while the run goes on, or a value is out of range;
            the message names it.
    """
    try:
        return changed(settings, patch)
    except ConfigError as error:
        raise InvalidRequest(f"settings.{error.message}") from None


def check_scale(run: str, settings: RunSettings, replicas: int | None) -> None:
    """
    Raises:
        InvalidRequest: the run may not have so many.
    """
    least, most = settings.min_replicas, settings.max_replicas
    if replicas is None or least <= replicas <= (most or replicas):
        return
    bounds = f"below min_replicas {least}" if replicas < least else f"above max_replicas {most}"
    instead = "; to train nothing for a while pause the run." if replicas < least else "."
    raise InvalidRequest(f"replicas: {replicas} is {bounds} of run {run}{instead}")


def check_equal(run: str, state: RunState, has: RunSettings, asked: RunSettings) -> None:
    """
    Raises:
        RunConflict: the run ``has`` other settings than those asked for; all are named, and what
            may yet be changed apart. That it has ended is said first, since nothing helps then.
    """
    stays, may_change = in_words(has, asked, FIXED), in_words(has, asked, LIVE)
    if state in ENDED and (stays or may_change):
        differs = "; ".join(filter(None, (stays, may_change)))
        raise RunConflict(
            f"Run {run} is {state}, and has other settings ({differs}); start another run."
        )
    way = f"`syncline runs set {run} KEY=VALUE`"
    if stays:
        also = f"; {way} changes the rest ({may_change})" if may_change else ""
        raise RunConflict(
            f"Run {run} exists with other settings, which stay ({stays}); use its settings, or "
            f"another name{also}."
        )
    if may_change:
        raise RunConflict(
            f"Run {run} exists with other settings ({may_change}); use its settings, change them "
            f"with {way}, or use another name."
        )
