"""One sync service as a replica sees it: OpenRun, Push, Pull and GetRunStatus.

A call is cut off when it has made no progress for ``call_s``, however long it takes as a whole: a
large fragment on a slow line is fine, a dead peer is not. Nothing is sent twice here; who may ask
again, and for how long, is the exchange's business. All methods may be called from any thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from syncline.change import Change
from syncline.line import Sending
from syncline.payload import Payload
from syncline.pulled import Incoming, Pulled
from syncline.scratch import Scratch
from syncline.stalled import Watch, Watched
from syncline_proto.addresses import bearer_token, sync_address
from syncline_proto.codec import Follower
from syncline_proto.errors import Forbidden, InvalidRequest, SynclineError, Unreachable, bare
from syncline_proto.layout import Layout
from syncline_proto.parts import read_chunk, write_chunk
from syncline_proto.settings import TimeoutSettings
from syncline_proto.status import PUBLISHED_TRAILER, from_rpc_error
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc

MESSAGE_BYTES_MAX = 8 << 20
"""A chunk is at most 2 MiB; a layout of many tensors, in one message, may be more."""

PUSH, PULL = "/syncline.sync.v1.SyncService/Push", "/syncline.sync.v1.SyncService/Pull"

AGO_S_MAX = 1e9
"""A revision is no older than that."""

LOOK_S = 5.0
"""Between two questions where a service is that does not answer."""


class Link:
    """A channel to one sync service.

    Raises (every call):
        Unreachable: the connection failed; or the token is refused that was taken before, which
            who started the service again may have mistyped.
        ChunkDamaged: what came, here or there, was damaged on its way.
        SynclineError: the class that the service's trailer names.
    """

    def __init__(
        self,
        address: str,
        timeouts: TimeoutSettings,
        token: str | None,
        elsewhere: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """``elsewhere`` is told an address that nobody answers at: it says where the service is
        by now, or None.

        Raises:
            ConfigError: the address or the token cannot be used.
        """
        self.address = sync_address(address)
        """Where calls go; replaced whole."""
        self.instance = ""
        """Of the service process, as last heard.

        Written by every call, read by any thread: one word, replaced whole. Who compares it has its
        own copy from before; at worst a push comes once more, which the service tells apart.
        """
        self.bytes_up = 0
        self.bytes_down = 0
        self._timeouts = timeouts
        token = bearer_token(token)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else None
        self._lock = threading.Lock()
        self._elsewhere, self._look_again_at, self._closed = elsewhere, 0.0, False
        self._calls = _Calls(self.address, timeouts)
        self._watch = Watch(timeouts.call_s)

    def close(self) -> None:
        """End every call in flight, and the connection."""
        self._watch.close()
        with self._lock:
            self._closed = True
        self._calls.channel.close()

    def follow(self) -> bool:
        """See where the service is that does not answer; whether calls go elsewhere from now on.

        Those in flight end. One thread looks, every ``LOOK_S``; all others go on.
        """
        with self._lock:
            if self._closed or time.monotonic() < self._look_again_at:
                return False
            self._look_again_at = math.inf
        try:
            address = self._elsewhere(self.address)
        finally:
            with self._lock:
                self._look_again_at = time.monotonic() + LOOK_S
        with self._lock:
            if self._closed or address is None:
                return False
            before = self._calls
            self.address, self._calls = address, _Calls(address, self._timeouts)
        before.channel.close()
        return True

    def open_run(
        self, run: str, replica: str, incarnation: int, layout: Layout
    ) -> pb.OpenRunResponse:
        """Open a run as one life of a replica, with its model's layout."""
        return self._open(
            pb.OpenRunRequest(
                run=run, replica=replica, incarnation=incarnation, layout=layout.to_proto()
            )
        )

    def observe(self, run: str) -> pb.OpenRunResponse:
        """Open a run as a reader: without a replica, a lease or a layout.

        What is published may then be pulled by requests that name no replica.
        """
        return self._open(pb.OpenRunRequest(run=run))

    def _open(self, request: pb.OpenRunRequest) -> pb.OpenRunResponse:
        with self._errors(), self._beginning():
            answer = self._calls.stub.OpenRun(
                request, timeout=self._timeouts.call_s, metadata=self._metadata
            )
        self.instance = answer.instance
        return answer

    def status(self, run: str) -> pb.GetRunStatusResponse:
        request = pb.GetRunStatusRequest(run=run)
        with self._errors(), self._beginning():
            answer = self._calls.stub.GetRunStatus(
                request, timeout=self._timeouts.call_s, metadata=self._metadata
            )
        self.instance = answer.instance
        return answer

    def push(self, header: pb.PushHeader, payload: Payload, sending: Sending) -> pb.PushResponse:
        """Send one rank's shard, and wait for the verdict on the replica's whole push.

        Chunks go out once the service has room for them. ``sending`` hears of each, and of the last
        byte, on another thread.

        Raises:
            Stalled: neither chunk nor answer moved for ``call_s``.
        """
        with self._errors(), self._watch.follow() as watched:
            parts = _parts(header, payload, watched, sending)
            with self._beginning():
                call = self._calls.push.future(parts, metadata=self._metadata)
            watched.begin(call)
            answer = call.result()
        with self._lock:
            self.bytes_up += payload.size
        return answer

    def pull(
        self,
        request: pb.PullRequest,
        elements: int | None,
        scratch: Scratch,
        follower: Follower | None = None,
        change: Change | None = None,
    ) -> Pulled:
        """Receive ``elements`` values of a revision, as soon as that is published.

        Their memory is from ``scratch``, and lost to that where the call fails.

        With ``header_only`` in the request ``elements`` is None. ``follower`` holds what the
        request says is held, and ``change`` too, where a difference to it is to stay one.

        Raises:
            Stalled: not published within ``call_s``, or the stream stopped.
            InvalidRequest: what came is not what was asked for.
        """
        with self._errors(), self._watch.follow() as watched:
            with self._beginning():
                stream: Any = self._calls.pull(request, metadata=self._metadata)
            watched.begin(stream)
            header = _read(next(stream)).header
            watched.moved()
            published_s = _moment(header.published_ago_s)
            if elements is not None and header.elements != elements:
                raise InvalidRequest(f"pull: {header.elements} elements came, not {elements}.")
            if header.difference_from not in ("", request.held):
                raise InvalidRequest("pull: a difference came to a value that is not held.")
            incoming = Incoming(header, elements or 0, scratch, follower, change)
            for part in stream:
                watched.moved()
                chunk = read_chunk(part) or _read(part).chunk
                incoming.take(chunk)
                with self._lock:
                    self.bytes_down += len(chunk.data)
            ago = dict(stream.trailing_metadata() or ()).get(PUBLISHED_TRAILER)
            if ago is not None:
                published_s = _moment(_number(ago))
        values = incoming.values()
        self.instance = header.instance
        return Pulled(header, values, published_s)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what grpc raises into our errors.

        What it raises is the call itself, which our frame has, too: a ring, and all that is sent or
        came in it, until the garbage collector comes. So its frames are taken from it.
        """
        what = f"The sync service at {self.address}"
        try:
            yield
        except (grpc.FutureCancelledError, StopIteration) as error:  # the latter: an empty stream
            raise Unreachable(f"{what} ended the call ({error or 'no answer'}).") from None
        except grpc.RpcError as error:
            raise self._translated(bare(error), what) from None

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """What begins a call meets a closed channel as a ValueError; elsewhere that is a fault."""
        try:
            yield
        except ValueError as error:
            raise Unreachable(f"The line to {self.address} was closed ({error}).") from None

    def _translated(self, error: grpc.RpcError, what: str) -> SynclineError:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.CANCELLED:
            return Unreachable(f"{what} ended the call.")
        told = from_rpc_error(error, what)
        if isinstance(told, Forbidden) and self.instance:
            return Unreachable(
                f"{what} refuses the token that it took before; start it with that one "
                "(SYNCLINE_SYNC_TOKEN)."
            )
        return told


class _Calls:
    """The calls of a connection."""

    def __init__(self, address: str, timeouts: TimeoutSettings) -> None:
        self.channel = grpc.insecure_channel(address, options=_options(timeouts))
        self.stub = sync_pb2_grpc.SyncServiceStub(self.channel)
        # Chunks are written and read by us; see ``syncline_proto.parts``.
        self.push = self.channel.stream_unary(
            PUSH, response_deserializer=pb.PushResponse.FromString
        )
        self.pull = self.channel.unary_stream(
            PULL, request_serializer=pb.PullRequest.SerializeToString
        )


def _moment(ago_s: float) -> float:
    """When something was ``ago_s`` ago, on this process's clock."""
    return time.monotonic() - min(max(0.0, ago_s), AGO_S_MAX)


def _number(told: str) -> float:
    """What a trailer tells.

    Raises:
        InvalidRequest: it is no number.
    """
    try:
        return float(told)
    except ValueError:
        raise InvalidRequest(f"pull: {PUBLISHED_TRAILER} is {told[:80]!r}, no number.") from None


def _read(part: bytes) -> pb.PullResponse:
    """A message of a pull.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return pb.PullResponse.FromString(part)
    except DecodeError as error:
        raise InvalidRequest(f"pull: what came is no message ({error}).") from None


def _parts(
    header: pb.PushHeader, payload: Payload, watched: Watched, sending: Sending
) -> Iterator[bytes]:
    """The messages of a push; grpc takes the next one when the line has room for it."""
    yield pb.PushRequest(header=header).SerializeToString()
    if not watched.has_room():
        return
    for chunk in payload.chunks():
        watched.moved()
        sending.moved()
        yield write_chunk(chunk)
    watched.moved()
    sending.ended()


def _options(timeouts: TimeoutSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", int(timeouts.call_s * 500)),
        ("grpc.keepalive_timeout_ms", int(timeouts.connect_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Also the longest that one attempt to connect may take.
        ("grpc.max_reconnect_backoff_ms", int(timeouts.connect_s * 200)),
        # Replicas of several runs in one process must not share a connection's flow control.
        ("grpc.use_local_subchannel_pool", 1),
        # Who reads a pull waits for its messages itself, and not for a thread that does so for it:
        # a switch of threads less for each of them, 3 % of a replica's CPU in a round in int8.
        # From ``grpc.experimental``: a release that does not know the name takes no notice.
        ("SingleThreadedUnaryStream", 1),
    ]
