"""Where a run stands, over all its sync services: the newest revision that every fragment has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from syncline.link import Link
from syncline_proto.errors import RunConflict, Unreachable
from syncline_proto.layout import Layout, layout_from_proto

AnyLink = TypeVar("AnyLink", bound=Link)


def standing(run: str, links: Sequence[AnyLink]) -> tuple[Layout, dict[int, AnyLink], int]:
    """The run's layout, who owns each fragment, and the smallest revision over them.

    Raises:
        RunConflict: nobody has set the run's parameters yet.
        Unreachable: a sync service does not answer, or no living one owns a fragment.
    """
    layout: Layout | None = None
    owners: dict[int, AnyLink] = {}
    revisions: list[int] = []
    for link in links:
        answer = link.observe(run)
        if not all(state.initialised for state in answer.fragments) or not answer.layout.tensors:
            raise RunConflict(
                f"the run {run} has no parameters yet; wait until a replica has joined it."
            )
        layout = layout or layout_from_proto(answer.layout)
        for state in answer.fragments:
            owners[state.fragment] = link
            revisions.append(state.revision)
    assert layout is not None
    for number, fragment in enumerate(layout.fragments):
        if number not in owners:
            raise Unreachable(f"No sync service that is alive owns fragment {fragment.name}.")
    return layout, owners, min(revisions)
