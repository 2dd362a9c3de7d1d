"""A run's settings as they are read: each by its dotted name, and what a change came to.

One that is not set is told as what it comes to, so that nobody has to look up what none means.
Never asks a service, and decides nothing: what the values do is settled elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncline_proto.rest import RunView
    from syncline_proto.settings import RunSettings


def settings_in_words(settings: RunSettings) -> dict[str, str]:
    """Return every setting by its dotted name; one that is not set as what it comes to."""
    unset = _defaults(settings)
    return {
        name: unset.get(name, "none") if value is None else _in_words(name, value)
        for name, value in _flat(settings.model_dump(mode="json"))
    }


def what_changed(before: RunView, after: RunView) -> str:
    """Return what a live change came to, in one sentence."""
    old, new = settings_in_words(before.settings), settings_in_words(after.settings)
    was, is_now = (dict(_flat(run.settings.model_dump())) for run in (before, after))
    changed = [name for name in new if is_now[name] != was[name]]  # not what follows from them
    changes = [f"{name} {new[name]} (was {old[name]})" for name in changed]
    if not changes:
        return f"{after.name} has these settings already."
    return f"From its next round on, {after.name} has {', '.join(changes)}."


def _defaults(settings: RunSettings) -> dict[str, str]:
    """What settings come to that are not set; of some that depends on others."""
    timeouts = settings.timeouts
    default = f"(default of {timeouts.profile})"
    found = {
        "expected_replicas": f"{settings.replicas} (default: min_replicas)",
        "penalty.temperature": f"{settings.penalty.kappa:g} mean norms (default: kappa)",
        "timeouts.lease": f"{timeouts.lease_s:g} s {default}",
        "timeouts.round_deadline": f"{timeouts.round_deadline_s:g} s {default}",
        "late.age_max": f"{settings.age_max} (default)",
    }
    if settings.quorum is not None:
        found["late.age_max"] = f"{settings.age_max} (default with quorum)"
        found["grace_seconds"] = (
            "at most half of what overlap_steps hides (default)"
            if settings.overlap_steps
            else "0 (default)"
        )
    if settings.asynchronous:
        found["late.age_max"] = f"{settings.age_max} (default with asynchronous)"
        found["window"] = "as many as take part (default)"
    return found


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in settings.items():
        below = isinstance(value, dict)
        found += _flat(value, f"{prefix}{key}.") if below else [(prefix + key, value)]
    return found


def _in_words(name: str, value: object) -> str:
    """A value as a job's file would have it; a time with its unit."""
    if name.startswith("timeouts.") and isinstance(value, float):
        return f"{value:g} s"
    return str(value).lower() if isinstance(value, bool) else str(value)
