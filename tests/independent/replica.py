"""A replica of any number of ranks: its lease, its pushes and its pulls.

Written from docs/protocol.md sections 3 to 7 and sync.proto. ``sync_pb2`` and ``sync_pb2_grpc`` are
generated anew for each test and found on the path. All ranks live in this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

import grpc
import numpy as np

from independent import numbers
from independent.blocks import INT8
from independent.control import Control, Lease
from independent.layout import Arrays, Box, Layout, flat, write
from independent.numbers import FP32, Array

pb: Any = importlib.import_module("sync_pb2")
stubs: Any = importlib.import_module("sync_pb2_grpc")

CALL_S = 60.0

Shards = Callable[[Sequence[Box], int], Sequence[Box]]
"""(a fragment's boxes, rank) -> the boxes of that rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a push covers; for PARAMETERS nothing."""

    inner_steps: int = 0
    tokens: int = 0
    first_step: int = 0

    @property
    def header(self) -> dict[str, int]:
        last = self.first_step + self.inner_steps
        return {
            "inner_steps": self.inner_steps,
            "tokens": self.tokens,
            "first_step": self.first_step,
            "last_step": last,
        }


NOTHING = Work()


def trailer(error: Any, key: str) -> str | None:
    return dict(error.trailing_metadata() or ()).get(key)


def refused(call: Callable[[], Any]) -> tuple[str | None, grpc.StatusCode, Any]:
    """Our code, gRPC's, and the error of a call that must end in one."""
    try:
        call()
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        return trailer(error, "syncline-code"), error.code(), error
    raise AssertionError("it was not refused")


def observed(address: str, run: str) -> Layout:
    """The layout of a run, as an observer is told it."""
    with grpc.insecure_channel(address) as channel:
        opened = stubs.SyncServiceStub(channel).OpenRun(pb.OpenRunRequest(run=run), timeout=CALL_S)
    return Layout.of_message(opened.layout)


class Replica:
    """``with Replica(...) as replica``: it has a lease, the run is open, the anchor is pulled."""

    def __init__(
        self,
        control: Control,
        run: str,
        name: str,
        layout: Layout,
        *,
        ranks: int = 1,
        shards: Shards = lambda boxes, rank: boxes,
        offer: Arrays | None = None,
    ) -> None:
        self.run, self.name, self.layout, self.ranks = run, name, layout, ranks
        self._shards = shards
        self._offer = layout.arrays() if offer is None else offer
        self.lease = Lease(control, run, name, ranks)
        self.channel = grpc.insecure_channel(self.lease.addresses[0])
        self.stub = stubs.SyncServiceStub(self.channel)
        self.fragments = range(len(layout.fragments))
        self.seqs = [0 for _ in self.fragments]
        self.revisions = [0 for _ in self.fragments]
        self.anchor = layout.arrays()
        self.values: dict[tuple[int, int], str] = {}
        """(fragment, rank) -> what the service calls the published value in its anchor."""
        self.differences = 0
        """How many pulls were told by one."""

    def __enter__(self) -> Self:
        opened = self.open()
        self.epoch: int = opened.epoch
        self.phases: list[int] = [state.phase for state in opened.fragments]
        assert opened.fingerprint == self.layout.fingerprint(), "or the page tells it wrong"
        for state in opened.fragments:
            if not state.initialised:
                answer = self.push(state.fragment, self._offer, kind=pb.PUSH_KIND_PARAMETERS)
                assert answer.verdict in (pb.VERDICT_ACCEPTED, pb.VERDICT_STALE), answer
        for fragment in self.fragments:
            self.pull(fragment, newest=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.channel.close()
        if kind is None:
            self.lease.leave()
        else:
            self.lease.forget()

    def open(self) -> Any:
        """OpenRun, with the layout."""
        layout = pb.Layout(
            tensors=[
                pb.Tensor(name=t.name, shape=t.shape, dtype=t.dtype, aliases=t.aliases)
                for t in self.layout.tensors
            ],
            fragments=[
                pb.Fragment(name=f.name, boxes=_messages(f.boxes)) for f in self.layout.fragments
            ],
            frozen_sha256=self.layout.frozen_sha256,
        )
        request = pb.OpenRunRequest(
            run=self.run, replica=self.name, incarnation=self.lease.incarnation, layout=layout
        )
        return self.stub.OpenRun(request, timeout=CALL_S, wait_for_ready=True)

    def boxes(self, fragment: int, rank: int) -> Sequence[Box]:
        return self._shards(self.layout.fragments[fragment].boxes, rank)

    def push(self, fragment: int, values: Arrays, **how: Any) -> Any:
        """One fragment of ``values``; the answer, which is the same on all ranks."""
        return self._one(self._begin(fragment, values, **how))

    def push_all(self, values: Arrays, **how: Any) -> list[Any]:
        """Every fragment of ``values`` at the same time; an answer for each."""
        begun = [self._begin(fragment, values, **how) for fragment in self.fragments]
        return [self._one(calls) for calls in begun]

    def _begin(self, fragment: int, values: Arrays, *, again: bool = False, **how: Any) -> Any:
        self.seqs[fragment] += not again
        return [self._send(self.parts(fragment, rank, values, **how)) for rank in range(self.ranks)]

    def _send(self, parts: list[Any]) -> Any:
        """Send a push: its header, and its chunks once the service has room for them."""
        begun: Future[Any] = Future()

        def messages() -> Iterator[Any]:
            yield parts[0]
            if "syncline-room" in dict(begun.result().initial_metadata()):
                yield from parts[1:]

        call = self.stub.Push.future(messages(), timeout=CALL_S)
        begun.set_result(call)
        return call

    def _one(self, calls: list[Any]) -> Any:
        answers = [call.result() for call in calls]
        assert all(answer == answers[0] for answer in answers), answers
        return answers[0]

    def parts(
        self,
        fragment: int,
        rank: int,
        values: Arrays,
        *,
        kind: int = pb.PUSH_KIND_PSEUDO_GRADIENT,
        base: int | None = None,
        step: int = 0,
        phase: int | None = None,
        codec: int = FP32,
        work: Work = NOTHING,
    ) -> list[Any]:
        """The messages of one rank's push; the base of a pseudo-gradient is the anchor."""
        if kind == pb.PUSH_KIND_PSEUDO_GRADIENT and base is None:
            base = self.revisions[fragment]
        if kind == pb.PUSH_KIND_GRADIENT and phase is None:
            phase = self.phases[fragment]
        boxes = self.boxes(fragment, rank)
        header = pb.PushHeader(
            run=self.run,
            epoch=self.epoch,
            replica=self.name,
            incarnation=self.lease.incarnation,
            fragment=fragment,
            seq=self.seqs[fragment],
            rank=rank,
            ranks=self.ranks,
            kind=kind,
            base_revision=base,
            gradient_step=step,
            phase=phase,
            codec=codec,
            boxes=_messages(boxes),
            **work.header,
        )
        payload = numbers.encode(flat(values, boxes), codec)
        chunks = [pb.Chunk(data=d, crc32c=numbers.crc32c(d)) for d in numbers.cut(payload, codec)]
        return [pb.PushRequest(header=header), *(pb.PushRequest(chunk=c) for c in chunks)]

    def pull(self, fragment: int, **wanted: Any) -> Any:
        """Overwrite the fragment's anchor, on all ranks; the last header."""
        header: Any = None
        for rank in range(self.ranks):
            held = self.values.get((fragment, rank), "")
            header = self._into(self.anchor, fragment, rank, held=held, **wanted)
            self.values[fragment, rank] = header.value
        self.revisions[fragment] = header.revision
        return header

    def pull_all(self, **wanted: Any) -> list[Any]:
        """The same for every fragment."""
        return [self.pull(fragment, **wanted) for fragment in self.fragments]

    def mean_gradient(self, step: int, beyond: int = 0) -> Arrays:
        """What the synchronous phase's step gave; of a phase ``beyond`` ours."""
        mean = self.layout.arrays()
        for fragment in self.fragments:
            for rank in range(self.ranks):
                phase = self.phases[fragment] + beyond
                header = self._into(mean, fragment, rank, gradient_step=step, phase=phase)
                assert header.codec == FP32 and header.gradient_step == step
        return mean

    def _into(self, arrays: Arrays, fragment: int, rank: int, **wanted: Any) -> Any:
        """Overwrite a rank's part of a fragment, or follow a difference to what is there."""
        boxes = self.boxes(fragment, rank)
        request = pb.PullRequest(
            run=self.run,
            epoch=self.epoch,
            replica=self.name,
            incarnation=self.lease.incarnation,
            fragment=fragment,
            boxes=_messages(boxes),
            header_only=not boxes,
            **wanted,
        )
        parts = self.stub.Pull(request, timeout=CALL_S)
        header = next(parts).header
        chunks = (part.chunk for part in parts)
        if header.difference_from:
            assert header.difference_from == request.held and header.codec == INT8
            values = numbers.followed(flat(arrays, boxes), self._places(fragment, boxes), chunks)
            self.differences += bool(boxes)
        else:
            values: Array = numbers.decode(numbers.joined(chunks, header.codec), header.codec)
        assert values.size == (header.elements if boxes else 0), (header.elements, len(boxes))
        write(arrays, boxes, values)
        return header

    def _places(self, fragment: int, boxes: Sequence[Box]) -> list[int]:
        """Numbers of the boxes' elements in the fragment's flat vector."""
        whole = self.layout.fragments[fragment].boxes
        numbered = [array.astype(np.int64) for array in self.layout.arrays()]
        write(numbered, whole, np.arange(flat(numbered, whole).size))
        return [int(place) for place in flat(numbered, boxes)]


def _messages(boxes: Sequence[Box]) -> list[Any]:
    return [pb.Box(tensor=b.tensor, offsets=b.offsets, sizes=b.sizes) for b in boxes]
