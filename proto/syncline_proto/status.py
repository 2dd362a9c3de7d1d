"""Errors <-> gRPC statuses: the one table, used by both ends.

The status is for machines that know gRPC, the trailer ``syncline-code`` for ours, the status
message for people.
"""

from __future__ import annotations

import re

import grpc

from syncline_proto import errors

CODE_TRAILER = "syncline-code"
NEWEST_TRAILER = "syncline-newest-revision"
PUBLISHED_TRAILER = "syncline-published-ago-s"
"""Of a pull that began while its revision was being written: what its header could not say."""
ROOM_HEADER = "syncline-room"
"""In a push's initial metadata: there is room for its chunks. It is not in that of a refusal."""

STATUS: dict[type[errors.SynclineError], grpc.StatusCode] = {
    errors.SynclineError: grpc.StatusCode.INTERNAL,
    errors.ConfigError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PortInUse: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FileMissing: grpc.StatusCode.NOT_FOUND,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ChunkDamaged: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RunUnknown: grpc.StatusCode.NOT_FOUND,
    errors.RunConflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ReplicaUnknown: grpc.StatusCode.NOT_FOUND,
    errors.LayoutMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DataMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.LeaseLost: grpc.StatusCode.PERMISSION_DENIED,
    errors.RevisionGone: grpc.StatusCode.FAILED_PRECONDITION,
    errors.EpochChanged: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CalledOff: grpc.StatusCode.ABORTED,
    errors.Unreachable: grpc.StatusCode.UNAVAILABLE,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RunFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StoreError: grpc.StatusCode.INTERNAL,
    errors.StoreDamaged: grpc.StatusCode.DATA_LOSS,
    errors.CheckpointError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CheckpointDamaged: grpc.StatusCode.DATA_LOSS,
    errors.TrainingDiverged: grpc.StatusCode.ABORTED,
    errors.ProcessFailed: grpc.StatusCode.ABORTED,
}

_ADDRESSES = re.compile(
    r"^failed to connect to all addresses; last error: \w+: \S+: "
    r"(Failed to connect to remote host: )?"
)
"""What gRPC says before the cause; the reader knows the address by a shorter name."""

_PLAINLY = (
    ("Socket closed", "it closed the connection"),
    ("Connection reset", "it closed the connection"),
    ("Expected SETTINGS frame", "what listens there does not speak gRPC"),
    ("before receiving SETTINGS frame", "it took the connection, and said nothing"),
    ("lookup failed", "no machine of that name is known"),
    ("Deadline Exceeded", "not within the time it was given"),
)
"""What is in gRPC's cause, and how a reader who knows no HTTP/2 is told."""


def status_of(error: errors.SynclineError) -> grpc.StatusCode:
    """Return the status of the error's class, or of the nearest class above it in the table."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def own_code(error: grpc.RpcError) -> str | None:
    """Our code of a failed call; None: gRPC has ended it, and nobody of ours has said why."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    found = (value for key, value in error.trailing_metadata() or () if key == CODE_TRAILER)
    return next((value for value in found if isinstance(value, str)), None)


def from_rpc_error(error: grpc.RpcError, what: str) -> errors.SynclineError:
    """Turn a failed call back into our error.

    Args:
        error: what grpc raised; it is a ``grpc.Call`` as well.
        what: the peer and the act in words, for the message of an unreachable service.
    """
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    details = error.details() or ""
    if (own := own_code(error)) is not None:
        return errors.from_code(own, details)
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        why = _why(details) or error.code().name
        return errors.Unreachable(f"{what} does not answer ({why}).")
    return errors.SynclineError(f"{what} failed: {error.code().name} {details}")


def _why(details: str) -> str:
    """The cause in plain words; one that is not known here as gRPC says it."""
    known = (words for said, words in _PLAINLY if said in details)
    return next(known, _ADDRESSES.sub("", details))
