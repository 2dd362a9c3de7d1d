"""Who is slower than the others, and what is done about it: named, given fewer steps, let go.

Pure: what replicas measured of themselves comes in with ``now``, verdicts go out. A pace is a
share: a replica's inner steps a second of its own time, without its waits, over the median of the
others'. So nobody is slow alone, of two the slower one is seen, and who waits for a straggler is
none. Names, fewer steps and leaving come in this order, each after a time without a break; time in
which nobody looked is a break. No verdict ever brings a run below its minimum, and one replica is
let go at a time.

Who is let go: by steps, whom the least share that it can be given does not help, so that the others
wait for it; by time nobody waits and everybody makes what it can, so it is who brings less than the
least share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from syncline_proto.settings import RunSettings
from syncline_proto.straggling import StragglerSettings

SHARE_STEP = 0.05
"""Shares of a round's steps are multiples of it."""
SHARE_CHANGE = 0.1
"""A smaller change of a share is not worth a word to its replica."""
RATE_MIN, RATE_MAX = 1e-6, 1e6
"""Inner steps a second that a replica can make, if any; what tells of others tells nothing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What is remembered of a replica from look to look."""

    slow_since: float | None = None
    """Since when it is below ``pace_min``, or has been named; None: it keeps up."""
    straggles: bool = False
    """It has been named."""
    share: float = 1.0
    """Of a round's inner steps, so many it is to make."""
    least_since: float | None = None
    """Since when even the least share is too much for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One replica at one look."""

    replica: str
    rate: float | None
    """Inner steps a second of its own time; None: nobody knows yet."""
    mark: Mark
    leaves: bool = False
    """It has been asked to leave, so there is nothing more to be said to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a look says of one replica."""

    replica: str
    pace: float | None
    mark: Mark
    events: Sequence[tuple[str, str]] = ()
    """Kinds, and sentences."""
    let_go: str = ""
    """Why it is asked to leave; empty: it is not."""


def least_share(settings: RunSettings) -> float | None:
    """The least share of a round's inner steps that a replica can make; None: any, by time.

    A fragment has one round under way at a time, so there are more than go on meanwhile.
    """
    if settings.sync_seconds is not None:
        return None
    return max(1, settings.overlap_steps) / settings.sync_every


def look(
    now: float,
    samples: Sequence[Sample],
    rules: StragglerSettings,
    least: int,
    share: float | None,
) -> list[Verdict]:
    """Return a verdict for each replica, in their order.

    Args:
        now: seconds on one clock.
        samples: all replicas of a run that hold a lease.
        rules: the run's settings.
        least: its ``min_replicas``.
        share: its ``least_share``.
    """
    if len(samples) == 1:
        return [_alone(samples[0])]
    floor = None if share is None else max(share, rules.share_min)
    rates = sorted(rate for one in samples if (rate := _rate(one)))
    found = [_judged(now, one, _pace(one, rates), rules, floor) for one in samples]
    staying = sum(not one.leaves for one in samples)
    if rules.policy != "let-go" or staying <= least or staying < len(samples):
        return found
    long = [
        (verdict.mark.least_since, number)
        for number, verdict in enumerate(found)
        if verdict.mark.least_since is not None
        and now - verdict.mark.least_since >= rules.let_go_seconds
    ]
    if long:
        number = min(long)[1]
        found[number] = replace(found[number], let_go=_why(found[number], rules, floor))
    return found


def broken_off(mark: Mark) -> Mark:
    """What is left of it after what nobody knows: a name, and fewer steps, outlast that."""
    since = mark.slow_since if mark.straggles else None
    return replace(mark, slow_since=since, least_since=None)


def _pace(one: Sample, rates: Sequence[float]) -> float | None:
    """The replica's rate over the median of the others'; None while nobody can say.

    ``rates`` are those of all who make steps, ascending: to gather the others of each of 1,000
    replicas anew took a quarter of a second.
    """
    rate, others = _rate(one), list(rates)
    if rate:
        del others[bisect_left(others, rate)]
    return rate / median(others) if rate is not None and others else None


def _rate(one: Sample) -> float | None:
    """What it says of itself, if that can be; None: nobody knows."""
    rate = one.rate
    return rate if rate is not None and (rate == 0.0 or RATE_MIN <= rate <= RATE_MAX) else None


def _alone(one: Sample) -> Verdict:
    """Nobody waits for who is alone."""
    said = f"{one.replica} is alone, so nobody waits for it; it makes all inner steps of a round."
    events = [("replica.keeps_up", said)] if one.mark.straggles else []
    return Verdict(replica=one.replica, pace=None, mark=Mark(), events=events)


def _judged(
    now: float, one: Sample, pace: float | None, rules: StragglerSettings, floor: float | None
) -> Verdict:
    """``floor``: the least share that anybody is given; None: none is, by time."""
    mark = one.mark
    if one.leaves:
        return Verdict(replica=one.replica, pace=pace, mark=mark)
    if pace is None:
        return Verdict(replica=one.replica, pace=None, mark=broken_off(mark))
    if not mark.straggles:
        mark = replace(mark, slow_since=_since(now, mark.slow_since, pace < rules.pace_min))
        if mark.slow_since is None or now - mark.slow_since < rules.seconds:
            return Verdict(replica=one.replica, pace=pace, mark=mark)
    elif pace >= (1.0 + rules.pace_min) / 2:
        # Halfway back to the others, so that nobody is named again and again at the border.
        again = f"{one.replica} keeps up again: {_at(pace)}."
        return Verdict(
            replica=one.replica, pace=pace, mark=Mark(), events=[("replica.keeps_up", again)]
        )
    events: list[tuple[str, str]] = []
    if not mark.straggles:
        named = f"{one.replica} straggles: {_at(pace)}, for {rules.seconds:g} s."
        events.append(("replica.straggles", named))
    share = 1.0 if floor is None else _share(pace, mark.share, rules, floor)
    if floor is None:
        too_slow = pace < rules.share_min
    else:
        too_slow = share <= floor and pace < min(floor, rules.pace_min)
    if share != mark.share:
        events.append(("replica.steps", _steps(one.replica, share, too_slow)))
    least_since = _since(now, mark.least_since, too_slow)
    mark = replace(mark, straggles=True, share=share, least_since=least_since)
    return Verdict(replica=one.replica, pace=pace, mark=mark, events=events)


def _since(now: float, since: float | None, is_so: bool) -> float | None:
    """Since when it is so, without a break."""
    return (now if since is None else since) if is_so else None


def _share(pace: float, has: float, rules: StragglerSettings, floor: float) -> float:
    """The share of a round's steps that takes a replica of this pace as long as the others."""
    if rules.policy == "tell":
        return 1.0
    share = max(floor, min(1.0, SHARE_STEP * round(pace / SHARE_STEP)))
    at_an_end = share in (floor, 1.0)
    return share if abs(share - has) >= SHARE_CHANGE or at_an_end else has


def _at(pace: float) -> str:
    return f"{pace:.2f} times as fast as the others' median"


def _steps(replica: str, share: float, too_slow: bool) -> str:
    if share == 1.0:
        return f"{replica} makes all inner steps of a round again."
    so = "which is the least; the others wait for it still" if too_slow else "so that nobody waits"
    return f"{replica} makes {100 * share:.0f} % of a round's inner steps, {so}."


def _why(verdict: Verdict, rules: StragglerSettings, floor: float | None) -> str:
    assert verdict.pace is not None
    if floor is None:
        so = f"so it brings less than {100 * rules.share_min:.0f} % of their inner steps"
    else:
        so = f"too slow for even {100 * floor:.0f} % of a round's inner steps"
    return (
        f"{verdict.replica} is let go: {_at(verdict.pace)}, and {so}, "
        f"for {rules.let_go_seconds:g} s; it is draining."
    )
