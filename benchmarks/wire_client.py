"""Pushes of messages that are made beforehand, and pulls that are thrown away.

For `wire.py` and `memory.py`. No retries, no decoding: a call that fails ends the benchmark.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np

from syncline_proto.codec import CODEC_BY_NAME, chunks, encode
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.parts import write_chunk
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc

CALL_S = 300.0
DURABILITY = "async"
"""Of what is measured: a revision is published first, and written behind."""
OPTIONS = (
    ("grpc.max_receive_message_length", 8 << 20),
    # Each replica has a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
)


def layout_of(fragments: int, elements: int) -> Layout:
    """Fragments of one vector each."""
    return Layout(
        tuple(TensorSpec(f"w{i}", (elements,), "float32") for i in range(fragments)),
        tuple(FragmentSpec(f"f{i}", (Box(i, (0,), (elements,)),)) for i in range(fragments)),
    )


def messages_of(elements: int, codec: str) -> list[bytes]:
    """The chunks of a fragment's push, as they go over the wire."""
    values = np.random.default_rng(0).standard_normal(elements, np.float32) * np.float32(1e-3)
    number = CODEC_BY_NAME[codec]
    return [write_chunk(chunk) for chunk in chunks(encode(values, number), number)]


def run_of(name: str, replicas: int, codec: str) -> dict[str, Any]:
    """What the control plane is to be told of a run; not more durable than it must be."""
    settings = {
        "min_replicas": replicas,
        "codec": {"up": codec, "down": codec},
        "timeouts": {"lease": 3600, "round_deadline": 7200},  # nobody sends heartbeats here
        "durability": DURABILITY,
    }
    return {"name": name, "settings": settings}


@contextmanager
def folder() -> Iterator[Path]:
    """Where a service keeps its store: in memory, where that can be had, so no disk is measured."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="syncline-benchmark-", dir=where) as made:
        yield Path(made)


class Client:
    """One replica's connection."""

    def __init__(self, address: str, run: str, replica: str, layout: Layout) -> None:
        self._run, self._replica, self._layout = run, replica, layout
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._push = self._channel.stream_unary(
            "/syncline.sync.v1.SyncService/Push",
            response_deserializer=pb.PushResponse.FromString,
        )
        self._pull = self._channel.unary_stream(
            "/syncline.sync.v1.SyncService/Pull",
            request_serializer=pb.PullRequest.SerializeToString,
        )

    def __enter__(self) -> Self:
        stub = sync_pb2_grpc.SyncServiceStub(self._channel)
        opening = pb.OpenRunRequest(
            run=self._run, replica=self._replica, incarnation=1, layout=self._layout.to_proto()
        )
        stub.OpenRun(opening, timeout=CALL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def offer(self, fragment: int, messages: Sequence[bytes]) -> None:
        """Push parameters, in fp32: they become revision 0."""
        self._send(
            messages,
            fragment=fragment,
            kind=pb.PUSH_KIND_PARAMETERS,
            codec=pb.CODEC_FP32,
            seq=1,
        )

    def push(self, fragment: int, messages: Sequence[bytes], codec: str, base: int) -> None:
        """Push a pseudo-gradient; it must count."""
        self._send(
            messages,
            fragment=fragment,
            kind=pb.PUSH_KIND_PSEUDO_GRADIENT,
            codec=CODEC_BY_NAME[codec],
            seq=base + 2,
            base_revision=base,
        )

    def pull(self, fragment: int, revision: int) -> list[int]:
        """Pull a revision, once it is published, and throw it away: the sizes of the messages."""
        request = pb.PullRequest(run=self._run, fragment=fragment, revision=revision)
        return [len(message) for message in self._pull(request, timeout=CALL_S)]

    def wait(self, fragment: int, revision: int) -> None:
        """Wait until a revision is published."""
        request = pb.PullRequest(
            run=self._run, fragment=fragment, revision=revision, header_only=True
        )
        for _ in self._pull(request, timeout=CALL_S):
            pass

    def _send(self, messages: Sequence[bytes], **header: Any) -> None:
        usual = {"run": self._run, "epoch": 1, "incarnation": 1, "ranks": 1, "inner_steps": 1}
        boxes = [box.to_proto() for box in self._layout.fragments[header["fragment"]].boxes]
        head = pb.PushHeader(replica=self._replica, boxes=boxes, tokens=1, **usual, **header)
        begun = threading.Event()

        def parts() -> Iterator[bytes]:
            yield pb.PushRequest(header=head).SerializeToString()
            begun.wait()
            call.initial_metadata()  # there is room now
            yield from messages

        call: Any = self._push.future(parts(), timeout=CALL_S)
        begun.set()
        answer = call.result()
        if answer.verdict != pb.VERDICT_ACCEPTED:
            raise SystemExit(f"A push was not accepted: {answer}")
