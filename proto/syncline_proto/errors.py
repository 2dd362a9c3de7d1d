"""The tree of errors, and what each one is on the wire and to the shell.

A verdict that a healthy system expects (stale, duplicate, anomalous) is a value, never an error.
An error means that the caller cannot go on as it meant to; its message is one sentence that says
what happened and, where somebody can act on it, what to do. An error that outlives its call is
made ``bare`` first.

    SynclineError              code               exit  retry
    ├─ ConfigError             CONFIG               10  no     a setting or flag is wrong
    │  ├─ PortInUse            PORT_IN_USE          11  no     another process listens there
    │  └─ FileMissing          FILE_MISSING         12  no     a path that must exist does not
    ├─ InvalidRequest          INVALID_REQUEST      14  no     the peer broke a rule
    │  └─ ChunkDamaged         CHUNK_DAMAGED        32  yes    it came, but not whole
    ├─ RunUnknown              RUN_UNKNOWN          15  no     no such run
    ├─ RunConflict             RUN_CONFLICT         16  no     exists with other settings, or ended
    ├─ ReplicaUnknown          REPLICA_UNKNOWN      17  no     no such replica
    ├─ LayoutMismatch          LAYOUT_MISMATCH      18  no     another model than the run's
    ├─ Forbidden               FORBIDDEN            19  no     the token does not allow this
    ├─ LeaseLost               LEASE_LOST           20  no     ran out, or a later life holds it
    ├─ RevisionGone            REVISION_GONE        21  no     older than the two kept revisions
    ├─ EpochChanged            EPOCH_CHANGED        22  no     the run was restored
    ├─ CalledOff               CALLED_OFF           23  no     told to leave before it had joined
    ├─ DataMismatch            DATA_MISMATCH        24  no     other data than the run's
    ├─ Unreachable             UNREACHABLE          30  yes    a service does not answer
    ├─ Overloaded              OVERLOADED           31  yes    out of room for now
    │  └─ RunFull              RUN_FULL             33  yes    all of the run's places are taken
    ├─ StoreError              STORE                40  no     the disk refused; we must stop
    │  └─ StoreDamaged         STORE_DAMAGED        41  no     a stored file fails its checksum
    ├─ CheckpointError         CHECKPOINT           42  no     where checkpoints are refuses
    │  └─ CheckpointDamaged    CHECKPOINT_DAMAGED   43  no     a checkpoint's file is damaged
    ├─ TrainingDiverged        DIVERGED             50  no     not finite, or nothing counts
    └─ ProcessFailed           PROCESS_FAILED       60  no     a process of ours ended badly

Programs exit with 0 when done, 1 for a fault of our own, 2 for wrong usage, 130 after Ctrl+C.
Numbers are never given twice. The worker adds DataError (DATA, 13) under ConfigError's range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, TypeVar

Setting = Literal["control", "token"]
"""The control plane's address, and the token that it asks for."""

_Raised = TypeVar("_Raised", bound=BaseException)


def bare(error: _Raised) -> _Raised:
    """Take from an error the frames it came through, its cause and its context; return it.

    They hold what was sent and read, until the garbage collector comes. Only for errors whose
    sentence says all: a fault of ours keeps its frames.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


class SynclineError(Exception):
    """Root of every error that Syncline raises on purpose."""

    code: ClassVar[str] = "SYNCLINE"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, setting: Setting | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.setting: Setting | None = setting
        """What to look at, if it is one of these; whoever shows the error knows how to set it."""
        self.way = ""
        """How to set it where Python is to print the error; ``str`` alone adds it."""

    def __str__(self) -> str:
        return self.told(self.way)

    def told(self, way: str) -> str:
        """Return the message, with the way to set what is to blame; "": there is none."""
        return f"{self.message.removesuffix('.')} ({way})." if way else self.message


class ConfigError(SynclineError):
    """A setting, flag or environment variable is wrong."""

    code, exit_code, http_status = "CONFIG", 10, 422


class PortInUse(ConfigError):
    """Another process listens on the port."""

    code, exit_code = "PORT_IN_USE", 11


class FileMissing(ConfigError):
    """A path that must exist does not; for data it is DATA."""

    code, exit_code, http_status = "FILE_MISSING", 12, 404


class InvalidRequest(SynclineError):
    """The peer broke a rule of the contract; nothing has changed."""

    code, exit_code, http_status = "INVALID_REQUEST", 14, 422


class ChunkDamaged(InvalidRequest):
    """A chunk does not match its checksum: it was damaged on its way, and may be sent again."""

    code, exit_code, retry = "CHUNK_DAMAGED", 32, True


class RunUnknown(SynclineError):
    """No run has this name."""

    code, exit_code, http_status = "RUN_UNKNOWN", 15, 404


class RunConflict(SynclineError):
    """The run exists with other settings, or its state does not allow this."""

    code, exit_code, http_status = "RUN_CONFLICT", 16, 409


class ReplicaUnknown(SynclineError):
    """The run has no such replica."""

    code, exit_code, http_status = "REPLICA_UNKNOWN", 17, 404


class LayoutMismatch(SynclineError):
    """The replica's model is not the run's; the sync service names the first difference."""

    code, exit_code, http_status = "LAYOUT_MISMATCH", 18, 409


class Forbidden(SynclineError):
    """The token is missing or does not allow this."""

    code, exit_code, http_status = "FORBIDDEN", 19, 403


class LeaseLost(SynclineError):
    """The lease ran out, or a later incarnation holds it."""

    code, exit_code, http_status = "LEASE_LOST", 20, 409


class DataMismatch(SynclineError):
    """The replica's data is not the run's; the control plane names the first difference."""

    code, exit_code, http_status = "DATA_MISMATCH", 24, 409


class RevisionGone(SynclineError):
    """The revision is older than the ones kept; the message names the newest."""

    code, exit_code, http_status = "REVISION_GONE", 21, 410


class EpochChanged(SynclineError):
    """The run was restored: revisions of the named epoch no longer exist."""

    code, exit_code, http_status = "EPOCH_CHANGED", 22, 409


class CalledOff(SynclineError):
    """The replica was asked to leave before it had joined."""

    code, exit_code, http_status = "CALLED_OFF", 23, 409


class Unreachable(SynclineError):
    """A service does not answer within its timeout."""

    code, exit_code, retry, http_status = "UNREACHABLE", 30, True, 503


class Overloaded(SynclineError):
    """The service has no room for this now."""

    code, exit_code, retry, http_status = "OVERLOADED", 31, True, 429


class RunFull(Overloaded):
    """The run has as many replicas as it may have; there is a place when one of them has left."""

    code, exit_code = "RUN_FULL", 33


class StoreError(SynclineError):
    """The store could not be read or written; the service stops rather than guess."""

    code, exit_code = "STORE", 40


class StoreDamaged(StoreError):
    """A stored file does not match its checksum; the message names it."""

    code, exit_code = "STORE_DAMAGED", 41


class CheckpointError(SynclineError):
    """A checkpoint cannot be written, or is not there; the service goes on."""

    code, exit_code, http_status = "CHECKPOINT", 42, 409


class CheckpointDamaged(CheckpointError):
    """A checkpoint's file is not what its manifest says; the message names it."""

    code, exit_code, http_status = "CHECKPOINT_DAMAGED", 43, 500


class TrainingDiverged(SynclineError):
    """The loss is not finite, or nobody's push counts, again and again."""

    code, exit_code = "DIVERGED", 50


class ProcessFailed(SynclineError):
    """A process that we started ended badly; the message names it and its log."""

    code, exit_code = "PROCESS_FAILED", 60


def every_kind(root: type[SynclineError] = SynclineError) -> Iterator[type[SynclineError]]:
    """Yield ``root`` and every class below it, each once."""
    yield root
    for child in root.__subclasses__():
        yield from every_kind(child)


def from_code(code: str, message: str, setting: Setting | None = None) -> SynclineError:
    """Return the error whose ``code`` this is; a plain SynclineError for one we do not know."""
    for kind in every_kind():
        if kind.code == code:
            return kind(message, setting)
    return SynclineError(f"{message} [{code}]", setting)
