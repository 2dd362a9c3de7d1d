"""What the metrics say of a run: of all its fragments, not of the one that closed last."""

from __future__ import annotations

from syncline_proto.merging import OuterSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import ClosedBy, Closing, Contribution, Kind, Saved
from syncline_sync.metrics import Metrics


def closing(tokens: int, **z: float) -> Closing:
    contributions = tuple(
        Contribution(
            replica=replica, incarnation=1, seq=1, verdict=pb.VERDICT_ACCEPTED, folded=1.0,
            rescale=1.0, weight=0.5, norm=1.0, z=score, inner_steps=1, tokens=1, first_step=0,
            last_step=0,
        )
        for replica, score in z.items()
    )  # fmt: skip
    return Closing(
        kind=Kind.PSEUDO_GRADIENT,
        closed_by=ClosedBy.EVERYONE,
        total_weight=2.0,
        outer=OuterSettings(),
        carry=None,
        saved=Saved(revision=1, committed_tokens=tokens, contributions=contributions),
        opened_s=0.0,
        effective_sample_size=2.0,
    )


def test_no_fragment_hides_another_and_series_go_with_their_replica() -> None:
    metrics = Metrics()
    run = metrics.of("run")

    def z(fragment: int, replica: str) -> float | None:
        labels = {"run": "run", "fragment": str(fragment), "replica": replica}
        return metrics.registry.get_sample_value("syncline_replica_z", labels)

    def tokens() -> float | None:
        return metrics.registry.get_sample_value("syncline_committed_tokens", {"run": "run"})

    for fragment in (0, 1):
        run.stands(fragment, Saved())
    run.closed(0, closing(10, a=7.0, b=0.5), 1.0)
    assert tokens() == 0.0, "the last fragment has none"
    run.closed(1, closing(20, a=0.25, b=0.5), 1.0)
    assert tokens() == 20.0, "those of the last fragment, as everywhere"
    assert [z(0, "a"), z(1, "a")] == [7.0, 0.25]
    run.members({"b"})
    assert [z(0, "a"), z(1, "a"), z(0, "b"), z(1, "b")] == [None, None, 0.5, 0.5]


def test_a_run_that_is_put_away_leaves_no_series() -> None:
    metrics = Metrics()

    def series(name: str) -> int:
        samples = (s for family in metrics.registry.collect() for s in family.samples)
        return sum(s.labels.get("run") == name for s in samples)

    runs = [metrics.of(name) for name in ("stays", "goes")]
    for run in runs:
        run.stands(0, Saved())
        run.judged(pb.VERDICT_ACCEPTED)
        run.moved("up", 10)
        with run.commit_seconds():
            pass
        run.closed(0, closing(20, a=7.0, b=0.5), 1.0)
    before = series("stays")
    assert before == series("goes") > 11
    runs[1].close()
    runs[1].moved("down", 10)  # a pull that is still ending
    assert (series("goes"), series("stays")) == (0, before)
    back = metrics.of("goes")
    back.stands(0, Saved())
    assert series("goes") == 2
