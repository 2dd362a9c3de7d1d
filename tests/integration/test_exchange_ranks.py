"""More fragments than send at a time, pushed by several ranks, through a service that is killed.

The ranks of one replica are exchanges of this process; services, links and what travels are real.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs
from torch import nn

from syncline import outage
from syncline.control import ControlClient
from syncline.core.agreement import Answer
from syncline.exchange import PUSHES_MAX, Exchange
from syncline.layout import Piece, RankShard
from syncline.link import Link
from syncline.payload import Encoded
from syncline.pulled import Held, Pulled
from syncline.push import Identity, Outcome, Push, Wanted
from syncline.scratch import Scratch
from syncline_proto.errors import Unreachable
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.rest import ReplicaRegister, RunCreate
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import arrived
from syncline_testing.waiting import wait_until

FRAGMENTS, RANKS, SHARD = 12, 3, 1 << 16
NUMEL = RANKS * SHARD
ROOM = 1 << 20
"""Of the service, for pushes: one fits in (768 KiB), two do not."""

LAYOUT = Layout(
    tuple(TensorSpec(f"t{i}", (NUMEL,), "float32") for i in range(FRAGMENTS)),
    tuple(FragmentSpec(f"f{i}", (Box(i, (0,), (NUMEL,)),)) for i in range(FRAGMENTS)),
)


class Hurried(TimeoutSettings):
    """Calls are cut soon, so that a test sees what follows."""

    @property
    def call_s(self) -> float:
        return 4.0

    @property
    def give_up_s(self) -> float:
        return 60.0


SETTINGS = RunSettings(min_replicas=2, timeouts=TimeoutSettings(lease=120.0, round_deadline=300.0))


@contextmanager
def exchanges(
    cluster: Cluster,
    replica: str,
    ranks: int,
    run: str = "run",
    least: int = 2,
    rules: RunSettings = SETTINGS,
) -> Iterator[list[Exchange]]:
    """One replica's, rank by rank; each holds an equal part of every fragment."""
    with closing(ControlClient(cluster.control_url, None, 10.0)) as client:
        settings = rules.model_copy(update={"min_replicas": least})
        client.create_run(RunCreate(name=run, settings=settings))
        lease = client.register(run, ReplicaRegister(replica=replica, ranks=ranks))
    size, made = NUMEL // ranks, list[Exchange]()
    try:
        for rank in range(ranks):
            link = Link(cluster.sync_address, Hurried(), None)
            epoch = link.open_run(run, replica, lease.incarnation, LAYOUT).epoch
            me = Identity(
                run=run, replica=replica, incarnation=lease.incarnation, rank=rank, ranks=ranks
            )
            shards = tuple(shard(Box(i, (rank * size,), (size,))) for i in range(FRAGMENTS))
            links = dict.fromkeys(range(FRAGMENTS), link)
            epochs = dict.fromkeys(links, epoch)
            made.append(
                Exchange(me, LAYOUT, shards, links, epochs, [0] * len(shards), Hurried(), Scratch())
            )
        yield made
    finally:
        for exchange in made:
            exchange.close()


def shard(box: Box) -> RankShard:
    """A shard of one piece; nobody here looks at the parameter that it would lie in."""
    return RankShard((Piece(nn.Parameter(), (), box, 0, True),), box.numel)


def push_all(
    ranks: list[Exchange],
    kind: pb.PushKind.ValueType,
    of: int | None = None,
    fragments: Sequence[int] = range(FRAGMENTS),
    base: int | None = None,
) -> list[Future[Outcome]]:
    """All or some fragments from all or some (``of`` so many) ranks, as training threads do."""
    if base is None and kind == pb.PUSH_KIND_PSEUDO_GRADIENT:
        base = 0
    step, phase = (1, 0) if kind == pb.PUSH_KIND_GRADIENT else (0, None)
    payload = Encoded(np.full(NUMEL // (of or len(ranks)), 1e-3, np.float32).view(np.uint8))
    push = Push(fragment=0, kind=kind, payload=payload, base=base, tokens=1)
    push = replace(push, gradient_step=step, phase=phase)
    return [
        rank.begin(replace(push, fragment=fragment)) for rank in ranks for fragment in fragments
    ]


def answers(futures: list[Future[Outcome]]) -> list[str]:
    """What came of each; an exchange that hangs is told as such."""
    told: list[str] = []
    for future in futures:
        try:
            outcome = future.result(30)
            told.append(str(outcome.error or outcome.answer.name))
        except NotYet:
            told.append("nothing came")
    return told


@pytest.mark.long
def test_ranks_do_not_wait_for_one_another_after_the_service_was_killed(tmp_path: Path) -> None:
    """Killed when so many fragments' pushes are in: none, some or all are to be sent again."""
    with Cluster(tmp_path, "--staging-bytes", str(ROOM)) as cluster:
        for killed_at in (1, FRAGMENTS // 2, FRAGMENTS):
            outlives_a_kill(cluster, killed_at)


def outlives_a_kill(cluster: Cluster, killed_at: int) -> None:
    """In a run of its own."""
    assert FRAGMENTS > 2 * PUSHES_MAX
    merged, run = [Answer.MERGED.name] * FRAGMENTS, f"killed-at-{killed_at}"
    with (
        exchanges(cluster, "wide", RANKS, run) as wide,
        exchanges(cluster, "narrow", 1, run) as narrow,
    ):
        assert answers(push_all(narrow, pb.PUSH_KIND_PARAMETERS)) == merged
        wides = push_all(wide, pb.PUSH_KIND_PSEUDO_GRADIENT)

        def are_in() -> bool:
            return sum("wide" in who for who in arrived(cluster.sync_address, run)) >= killed_at

        wait_until(are_in, 30, f"pushes of {killed_at} fragments are in")
        cluster.sync.kill()
        cluster.sync.start()
        narrows = push_all(narrow, pb.PUSH_KIND_PSEUDO_GRADIENT)
        assert answers(narrows) == merged, killed_at
        assert answers(wides) == merged * RANKS, killed_at


def test_who_has_the_answer_to_a_stale_push_is_not_waited_for_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks one has pulled, and will not push again; the service remembers neither."""
    gradient = pb.PUSH_KIND_PSEUDO_GRADIENT
    with (
        Cluster(tmp_path) as cluster,
        exchanges(cluster, "narrow", 1, least=1) as narrow,
        exchanges(cluster, "wide", 2, least=1) as wide,
    ):
        for kind in (pb.PUSH_KIND_PARAMETERS, gradient):
            assert answers(push_all(narrow, kind)) == [Answer.MERGED.name] * FRAGMENTS
        begun: list[Future[Outcome]] = []

        def broken_off(*_: object) -> None:
            monkeypatch.undo()
            wait_until(lambda: len(begun) == 2 and begun[0].done(), 30, "the other has its own")
            cluster.sync.kill()
            cluster.sync.start()
            raise Unreachable("It was killed.")

        monkeypatch.setattr(wide[1]._puller, "pull", broken_off)
        begun += push_all(wide, gradient, fragments=[0])
        assert answers(begun) == [Answer.STALE.name] * 2


@pytest.mark.long
@pytest.mark.parametrize("is_over", [False, True], ids=["in the phase", "over"])
def test_ranks_never_hold_a_mean_gradient_of_two_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """One has it before a kill, the other asks after that: no epoch begins while it is there."""
    more = {"durability": "async", "warmup_steps": 1, "asynchronous": True}
    rules = SETTINGS.model_copy(update=more)
    merged = [Answer.MERGED.name] * FRAGMENTS
    with (
        Cluster(tmp_path) as cluster,
        exchanges(cluster, "narrow", 1, least=1, rules=rules) as narrow,
        exchanges(cluster, "wide", 2, least=1, rules=rules) as (first, second),
    ):
        pull, is_cut = second._puller.pull, False
        assert answers(push_all(narrow, pb.PUSH_KIND_PARAMETERS)) == merged
        begun: list[Future[Outcome]] = []

        def broken_off(fragment: int, wanted: Wanted, held: Held | None = None) -> Pulled:
            nonlocal is_cut
            if fragment or is_cut:
                return pull(fragment, wanted, held)
            is_cut = True
            wait_until(lambda: sum(one.done() for one in begun) == len(begun) - 1, 30, "others")
            if is_over:
                ended = push_all(narrow, pb.PUSH_KIND_PARAMETERS, base=0)
                assert answers(ended) == merged
                ended = push_all(narrow, pb.PUSH_KIND_PSEUDO_GRADIENT, base=1)
                assert answers(ended) == merged
            cluster.sync.kill()
            cluster.sync.start()
            raise Unreachable("It was killed.")

        monkeypatch.setattr(second._puller, "pull", broken_off)
        begun += push_all([first, second], pb.PUSH_KIND_GRADIENT)
        one, other = begun[0].result(30), begun[FRAGMENTS].result(60)
        assert is_cut and one.answer is Answer.MERGED and one.pulled is not None
        assert one.pulled.header.epoch == 1
        epoch = second.states() and second._services.epoch(0)
        if is_over:
            assert (other.answer, epoch) == (Answer.GONE, 2), "a new one, and no mean gradient"
        else:
            assert other.answer is Answer.MERGED and other.pulled is not None
            header = other.pulled.header
            assert (header.epoch, header.revision, header.gradient_step) == (1, 0, 1)


@pytest.mark.long
def test_a_service_that_waits_for_another_rank_is_not_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the call and does not answer: nobody is told to start it again."""
    monkeypatch.setattr(Hurried, "call_s", property(lambda _: 1.0))
    monkeypatch.setattr(outage, "SAY_AFTER_S", 0.5)
    with (
        Cluster(tmp_path) as cluster,
        exchanges(cluster, "wide", 2) as (first, second),
        capture_logs() as logs,
    ):
        early = push_all([first], pb.PUSH_KIND_PARAMETERS, 2)
        time.sleep(4.0)
        assert not any(push.done() for push in early)
        late = push_all([second], pb.PUSH_KIND_PARAMETERS, 2)
        assert answers(early + late) == [Answer.MERGED.name] * 2 * FRAGMENTS
    assert [log for log in logs if log["event"].startswith("sync.")] == []
