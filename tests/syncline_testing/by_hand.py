"""A replica of one rank that a test drives fragment by fragment, so that the instant is exact."""

from __future__ import annotations

from typing import Any, Self

import grpc
import httpx
import numpy as np

from syncline_proto.codec import chunks, encode
from syncline_proto.layout import layout_from_proto
from syncline_proto.parts import write_chunk
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import STEP_TOKENS


class ByHand:
    """A replica that pushes zeros; another one has opened the run. It sends no heartbeat."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        answer = httpx.post(
            f"{cluster.control_url}/v1/runs/{run}/replicas", json={"replica": "by-hand"}
        ).raise_for_status()
        self.run = run
        self.incarnation = answer.json()["incarnation"]
        self.channel = grpc.insecure_channel(cluster.sync_address)
        self.stub: Any = sync_pb2_grpc.SyncServiceStub(self.channel)
        self.layout = layout_from_proto(self.stub.OpenRun(pb.OpenRunRequest(run=run)).layout)
        self.seqs = [0] * len(self.layout.fragments)
        self.stub.OpenRun(
            pb.OpenRunRequest(
                run=run,
                replica="by-hand",
                incarnation=self.incarnation,
                layout=self.layout.to_proto(),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def push(self, fragment: int, base: int) -> pb.PushResponse:
        kind = pb.PUSH_KIND_PSEUDO_GRADIENT
        return self._push(fragment, kind=kind, base_revision=base, inner_steps=4)

    def gradient(self, fragment: int, step: int) -> pb.PushResponse:
        """Of a step of the synchronous phase."""
        return self._push(fragment, kind=pb.PUSH_KIND_GRADIENT, gradient_step=step, inner_steps=1)

    def _push(self, fragment: int, **given: Any) -> pb.PushResponse:
        spec = self.layout.fragments[fragment]
        self.seqs[fragment] += 1
        header = pb.PushHeader(
            run=self.run,
            epoch=1,
            replica="by-hand",
            incarnation=self.incarnation,
            fragment=fragment,
            seq=self.seqs[fragment],
            ranks=1,
            codec=pb.CODEC_FP32,
            boxes=[box.to_proto() for box in spec.boxes],
            tokens=STEP_TOKENS,
            **given,
        )
        payload = encode(np.zeros(spec.numel, np.float32), pb.CODEC_FP32)
        parts = [pb.PushRequest(header=header)]
        parts += [
            pb.PushRequest.FromString(write_chunk(chunk))
            for chunk in chunks(payload, pb.CODEC_FP32)
        ]
        return self.stub.Push(iter(parts), timeout=20)

    def waits_in(self, fragments: range) -> bool:
        """Whether the open round of each fragment holds a push."""
        states = self.stub.GetRunStatus(pb.GetRunStatusRequest(run=self.run), timeout=10).fragments
        return all(states[fragment].arrived for fragment in fragments)

    def published(self, fragment: int, revision: int) -> pb.PullHeader:
        request = pb.PullRequest(
            run=self.run, fragment=fragment, revision=revision, header_only=True
        )
        return next(self.stub.Pull(request, timeout=20)).header
