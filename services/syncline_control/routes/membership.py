"""Membership, as a long poll: answered when it is no longer what the caller knows."""

from __future__ import annotations

from fastapi import APIRouter

from syncline_control.routes.asking import After, Control, RunName, WaitSeconds
from syncline_proto.rest import Membership

router = APIRouter(prefix="/v1", tags=["membership"])


@router.get("/membership")
async def get_membership(
    state: Control, after: After = None, wait_s: WaitSeconds = 20
) -> Membership:
    """Every run that has not ended, and who takes part in it.

    With `after`, the version that the caller knows, the answer comes when there is another one,
    or unchanged after `wait_s`.
    """
    return await state.membership(None, after, wait_s)


@router.get("/runs/{run}/membership")
async def get_run_membership(
    state: Control, run: RunName, after: After = None, wait_s: WaitSeconds = 20
) -> Membership:
    """The same for one run, ended or not. The version still counts changes of all runs."""
    return await state.membership(run, after, wait_s)
