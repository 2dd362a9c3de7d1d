"""One sync service as it copies its part of a checkpoint: the calls of CheckpointService.

A stream of these has no deadline of its own: the service tells of it every second or so, and a dead
connection ends it. Whoever calls may end it at any time, from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from syncline.link import Link
from syncline_proto.errors import CheckpointError, SynclineError, Unreachable
from syncline_proto.manifest import Manifest, manifest_of
from syncline_proto.settings import TimeoutSettings
from syncline_proto.status import own_code
from syncline_proto.v1 import checkpoints_pb2 as pb
from syncline_proto.v1 import checkpoints_pb2_grpc

T = TypeVar("T")

CALL_S = 120.0
"""Of the two short calls: an object store may take its time."""


class Copier(Link):
    """A channel to one sync service; calls raise what ``Link`` says, and checkpoints' errors."""

    def __init__(self, address: str, token: str | None) -> None:
        super().__init__(address, TimeoutSettings(), token)
        self._kept: Any = checkpoints_pb2_grpc.CheckpointServiceStub(self._calls.channel)
        self._call: Any = None
        self._is_called_off = False

    def call_off(self) -> None:
        """End the stream that is under way, or was asked for and has not begun."""
        self._is_called_off = True
        call = self._call  # its own thread may forget it meanwhile
        if call is not None:
            call.cancel()

    def save(
        self, run: str, url: str, revision: int | None, fragments: list[int]
    ) -> Iterator[pb.SaveFragmentsResponse]:
        """``revision`` None: the newest of each fragment."""
        request = pb.SaveFragmentsRequest(
            run=run, url=url, revision=revision or 0, fragments=fragments, newest=revision is None
        )
        return self._stream(self._kept.SaveFragments, request)

    def restore(self, run: str, url: str) -> Iterator[pb.RestoreFragmentsResponse]:
        request = pb.RestoreFragmentsRequest(run=run, url=url)
        return self._stream(self._kept.RestoreFragments, request)

    def seal(self, url: str, manifest: Manifest) -> None:
        request = pb.SealCheckpointRequest(url=url, manifest=manifest.model_dump_json())
        with self._errors():
            self._kept.SealCheckpoint(request, timeout=CALL_S, metadata=self._metadata)

    def manifest(self, url: str) -> Manifest:
        request = pb.ReadCheckpointRequest(url=url)
        with self._errors():
            answer = self._kept.ReadCheckpoint(request, timeout=CALL_S, metadata=self._metadata)
        return manifest_of(answer.manifest, f"{url}'s manifest")

    def _stream(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        self._is_called_off = False
        return self._answers(method, request)

    def _answers(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        with self._errors():
            self._call = method(request, metadata=self._metadata)
            try:
                if self._is_called_off:
                    raise Unreachable(f"The call to {self.address} was called off.")
                yield from self._call
            finally:
                self._call.cancel()
                self._call = None

    def _translated(self, error: grpc.RpcError, what: str) -> SynclineError:
        """Whoever asks is a person, whom nobody asks again for; what we say ourselves says more.

        Directories, credentials and room may be there for one service and not for another.
        """
        told = super()._translated(error, what)
        if isinstance(told, CheckpointError):
            return type(told)(f"{what} says: {told.message}")
        if isinstance(told, Unreachable) and own_code(error) is None:
            return Unreachable(f"{told.message} See that it runs, then try again.")
        return told
