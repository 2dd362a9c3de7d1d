"""Where a run stands, over all its sync services: who owns what, and the revision that all have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from syncline.link import Link
from syncline_proto.errors import RevisionGone, RunConflict, RunUnknown, Unreachable
from syncline_proto.layout import Layout, layout_from_proto
from syncline_proto.rest import RunView
from syncline_proto.v1 import sync_pb2 as pb

AnyLink = TypeVar("AnyLink", bound=Link)
Key = TypeVar("Key")


def standing(run: RunView, links: Sequence[AnyLink]) -> tuple[Layout, dict[int, AnyLink], int]:
    """The run's layout, who owns each fragment, and the smallest revision over them.

    Raises:
        RunConflict: nobody has set the run's parameters yet, or a sync service has lost them.
        Unreachable: a sync service does not answer, or a fragment has no owner, or two.
    """
    layout: Layout | None = None
    answers: dict[AnyLink, pb.OpenRunResponse] = {}
    for link in links:
        try:
            answer = answers[link] = link.observe(run.name)
        except RunUnknown:  # there is one, as the control plane says
            raise _has_nothing(run, link) from None
        if not all(state.initialised for state in answer.fragments) or not answer.layout.tensors:
            raise _has_nothing(run, link)
        layout = layout or layout_from_proto(answer.layout)
    assert layout is not None
    owners = owners_of(layout, answers)
    revision = min(state.revision for answer in answers.values() for state in answer.fragments)
    return layout, owners, revision


def no_cut(last: RevisionGone) -> RevisionGone:
    """What to tell who has found no revision of all fragments, again and again; ``last`` is why."""
    return RevisionGone(
        f"There is no revision that every fragment has and keeps: {last.message} Each keeps its "
        "two newest; let those that are ahead sit out until the others are there, then try again."
    )


def _has_nothing(run: RunView, link: Link) -> RunConflict:
    """What it means that a sync service has no parameters of a run that there is."""
    if run.revision:
        return RunConflict(
            f"The sync service at {link.address} has nothing of run {run.name}, which has gone on: "
            "start it on the folder (--data) that has the run."
        )
    if run.ended_at is not None:
        return RunConflict(f"Run {run.name} ended before it had parameters: nothing is left of it.")
    return RunConflict(
        f"Run {run.name} has no parameters yet, for no replica has begun to train in it; start one "
        f"(syncline train JOB --run {run.name}), then try again."
    )


def owners_of(layout: Layout, answers: Mapping[Key, pb.OpenRunResponse]) -> dict[int, Key]:
    """Who owns each fragment, from what every sync service has said of itself.

    Raises:
        Unreachable: a fragment has no owner, or two; it is named.
    """
    owners: dict[int, Key] = {}
    for key, answer in answers.items():
        for state in answer.fragments:
            if state.fragment in owners:
                name = layout.fragments[state.fragment].name
                raise Unreachable(
                    f"Two sync services own fragment {name}; give all of them the same --shards, "
                    "and each an --index of its own."
                )
            owners[state.fragment] = key
    for number, fragment in enumerate(layout.fragments):
        if number not in owners:
            raise Unreachable(
                f"No sync service that is alive owns fragment {fragment.name}; start those that "
                "lack, each on its own folder (--data)."
            )
    return owners
