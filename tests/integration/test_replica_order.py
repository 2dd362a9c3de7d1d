"""In the order of the forward pass: what is pushed first, beside what, and who waits for what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from syncline import exchange, link
from syncline.anchors import Anchors
from syncline.line import Sending
from syncline.link import Link
from syncline.payload import Encoded, Payload
from syncline_proto.parts import Chunk
from syncline_proto.settings import CodecName
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.by_hand import ByHand
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, TinyModel, Trial
from syncline_testing.waiting import wait_until

TWO = {**QUICK, "min_replicas": 2, "timeouts": {"lease": 20.0, "round_deadline": 60.0}}
FRAGMENTS = range(4)


def watched(trial: Trial) -> list[int]:
    """Grows by the fragment of each stage that has run: embedding, blocks, head."""
    model = trial.model
    stages: tuple[nn.Module, ...] = (model.embed, *model.blocks, model.head)
    ran: list[int] = []

    def watch(fragment: int, module: nn.Module) -> None:
        module.register_forward_hook(lambda *_: ran.append(fragment))

    for fragment, module in enumerate(stages):
        watch(fragment, module)
    return ran


def test_each_stage_waits_for_its_own_fragment_and_for_no_other(cluster: Cluster) -> None:
    """The forward pass goes as far as the fragments that are published, and no further."""
    trial = Trial(cluster.control_url, "stages", 1, settings=TWO)
    trial.replica.start()
    try:
        with ByHand(cluster, "stages") as other:
            assert len(other.layout.fragments) == len(FRAGMENTS)
            trial.step(4)
            ran = watched(trial)
            forward = threading.Thread(target=trial.step, daemon=True)
            forward.start()
            for fragment in FRAGMENTS:
                before = list(range(fragment))
                wait_until(
                    lambda before=before: trial.replica.phase == "waiting" and ran == before,
                    20,
                    f"stages {before} have run, and the next one waits",
                )
                assert other.push(fragment, base=0).verdict == pb.VERDICT_ACCEPTED
            forward.join(20)
            assert ran == list(FRAGMENTS)
            assert trial.replica.revision == 1
    finally:
        trial.replica.close(failed=True)


class Recomputed(TinyModel):
    """Keeps nothing of its last block for the backward pass, and runs it there again."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for block in self.blocks[:-1]:
            h = block(h)
        h = checkpoint(self.blocks[-1], h, use_reentrant=True)
        return self.head(self.norm(h))


def test_a_run_that_ends_amid_a_forward_pass_changes_nothing_that_its_backward_needs(
    cluster: Cluster,
) -> None:
    """Nor where a part of that pass keeps no graph, as a block that is computed again."""
    trial = Trial(cluster.control_url, "amid", 1, settings=TWO, model=Recomputed(1))
    trial.replica.start()
    try:
        with ByHand(cluster, "amid") as other, ThreadPoolExecutor(1) as pool:
            trial.step(4)
            ran = watched(trial)
            step = pool.submit(trial.step)
            for fragment in (0, 1):
                assert other.push(fragment, base=0).verdict == pb.VERDICT_ACCEPTED
            wait_until(lambda: ran == [0, 1], 20, "the last block waits")
            cluster.post("/runs/amid/stop")
            step.result(20)
            assert trial.replica.done
            assert [other.published(f, 1).revision for f in (0, 1)] == [1, 1]
    finally:
        trial.replica.close(failed=True)


def test_pushes_go_out_in_forward_order(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time; the first is held back until all of them stand in line."""
    sent: list[int] = []
    go_on = threading.Event()
    push = Link.push

    def told(
        at: Link, header: pb.PushHeader, payload: Payload, sending: Sending
    ) -> pb.PushResponse:
        if header.kind == pb.PUSH_KIND_PSEUDO_GRADIENT:
            sent.append(header.fragment)
            assert go_on.wait(20)
        return push(at, header, payload, sending)

    monkeypatch.setattr(Link, "push", told)
    monkeypatch.setattr(exchange, "PUSHES_MAX", 1)
    trial = Trial(cluster.control_url, "line", 1, settings={**TWO, "min_replicas": 1})
    trial.replica.start()
    try:
        trial.step(4)
        wait_until(lambda: sent == [0], 20, "the first fragment's push begins")
        go_on.set()
        trial.replica.finish()
        assert sent == list(FRAGMENTS)
    finally:
        go_on.set()
        trial.replica.close(failed=True)


def test_a_fragment_is_sent_while_the_next_ones_are_still_in_the_model(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is copied out of the model, and encoded, only once the one before has arrived."""
    there = [threading.Event() for _ in FRAGMENTS]
    push, taken = Link.push, Anchors.pseudo_gradient

    def told(
        at: Link, header: pb.PushHeader, payload: Payload, sending: Sending
    ) -> pb.PushResponse:
        answer = push(at, header, payload, sending)
        if header.kind == pb.PUSH_KIND_PSEUDO_GRADIENT:
            there[header.fragment].set()
        return answer

    def after_the_one_before(anchors: Anchors, fragment: int, codec: CodecName = "fp32") -> Encoded:
        assert fragment == 0 or there[fragment - 1].wait(20)
        return taken(anchors, fragment, codec)

    monkeypatch.setattr(Link, "push", told)
    monkeypatch.setattr(Anchors, "pseudo_gradient", after_the_one_before)
    trial = Trial(cluster.control_url, "beside", 1, settings={**TWO, "min_replicas": 1})
    with trial.replica:
        trial.step(4)
        trial.replica.finish()
        assert trial.replica.revision == 1


def test_several_fragments_are_sent_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are turns: no chunk goes out before all of them are under way."""
    all_of_them = threading.Barrier(exchange.PUSHES_MAX)
    assert exchange.PUSHES_MAX > 1 and len(FRAGMENTS) % exchange.PUSHES_MAX == 0
    write = link.write_chunk

    def together(chunk: Chunk) -> bytes:
        all_of_them.wait(20)
        return write(chunk)

    trial = Trial(cluster.control_url, "at-once", 1, settings={**TWO, "min_replicas": 1})
    with trial.replica:
        monkeypatch.setattr(link, "write_chunk", together)
        trial.step(4)
        trial.replica.finish()
        assert trial.replica.revision == 1
