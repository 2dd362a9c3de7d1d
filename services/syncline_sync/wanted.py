"""Which published value a pull asks for; how it comes to be there is the runner's."""

from __future__ import annotations

from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.runner import Runner
from syncline_sync.shelf import Shelf


def wanted(runner: Runner, request: pb.PullRequest) -> tuple[Shelf, int | None]:
    """Where what a pull wants is to be had, and under which number; None: the newest.

    Raises:
        InvalidRequest: it names nothing, or a step that the synchronous phase does not have.
        RevisionGone: nobody can have pushed to the step yet, or it is over.
    """
    named = request.WhichOneof("wanted")
    if named == "revision":
        return runner.holding.revisions, request.revision
    if named == "newest":
        return runner.holding.revisions, None
    if named == "gradient_step":
        steps = runner.core.settings.warmup_steps
        if steps and not 1 <= request.gradient_step <= steps:
            raise InvalidRequest(f"gradient_step: {request.gradient_step} is not 1 to {steps}.")
        shelf = runner.holding.gradients
        if request.gradient_step > (shelf.newest or 0) + 1:  # nobody has pushed to it yet
            raise shelf.missing(request.gradient_step)
        return shelf, request.gradient_step
    raise InvalidRequest("wanted: name a revision, the newest, or a gradient_step.")


def phase_of(runner: Runner, request: pb.PullRequest) -> int | None:
    """The synchronous phase of which a pull is; None: it is of none, or of whichever."""
    if request.HasField("phase"):
        return request.phase
    return runner.latest.phase if request.WhichOneof("wanted") == "gradient_step" else None
