"""A store's folder that goes while the service runs: it ends, and publishes nothing elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import RUN
from syncline_testing.sync_process import RULES, Process, at_work, one_sentence, process
from syncline_testing.waiting import wait_until

ASYNC = RULES.model_copy(update={"durability": "async"})


def round_from(p: Process, base: int) -> None:
    for replica, seq in (("a", base + 2), ("b", base + 1)):
        p.push(0.25, replica, seq=seq, base_revision=base)


def store_is_moved(store: Path) -> None:
    store.rename(store.with_name("kept"))


def store_is_unmounted(store: Path) -> None:
    store_is_moved(store)
    store.mkdir()


def store_is_removed(store: Path) -> None:
    shutil.copytree(store, store.with_name("kept"))
    shutil.rmtree(store)


def run_is_removed(store: Path) -> None:
    shutil.copytree(store, store.with_name("kept"))
    shutil.rmtree(store / "runs" / RUN)


@pytest.mark.parametrize(
    ("go", "settings"),
    [
        (store_is_moved, RULES),
        pytest.param(store_is_unmounted, RULES, marks=pytest.mark.long),
        pytest.param(store_is_removed, RULES, marks=pytest.mark.long),
        pytest.param(run_is_removed, RULES, marks=pytest.mark.long),
        pytest.param(store_is_unmounted, ASYNC, marks=pytest.mark.long),
    ],
)
def test_it_ends_and_goes_on_from_its_last_revision_once_the_folder_is_back(
    tmp_path: Path, go: Callable[[Path], None], settings: RunSettings
) -> None:
    store = tmp_path / "store"
    with at_work(store, settings=settings) as p:
        round_from(p, 0)
        assert p.pull(1)[0] == 0.75
        head = store / "runs" / RUN / "00000" / "head.json"
        wait_until(lambda: "r00000001" in head.read_text(), 20, "the revision is on the disk")
        go(store)
        with suppress(grpc.RpcError):  # it may end before the last answer is out
            round_from(p, 1)
        if settings is RULES:
            with pytest.raises(grpc.RpcError):
                p.pull(2)
        code, said = p.ended()
    assert code == 40
    last = one_sentence(said)
    assert "start the service again: nothing that was published is lost" in last
    assert ("was moved, removed or unmounted" in last) is (go is not run_is_removed)
    assert not list(store.rglob("*.safetensors")), "nothing was made anew"
    shutil.rmtree(store, ignore_errors=True)
    store.with_name("kept").rename(store)
    with process(store) as p:
        p.ready()
        assert p.pull(1)[0] == 0.75
        epoch = p.stub.GetRunStatus(pb.GetRunStatusRequest(run=RUN), timeout=20).epoch
        assert epoch == 1 or settings is ASYNC, "only there one may have been published and lost"
        for replica, seq in (("a", 3), ("b", 2)):
            again = p.push(0.25, replica, seq=seq, base_revision=1, epoch=epoch)
            assert again.verdict == pb.VERDICT_ACCEPTED
        assert p.pull(2)[0] == 0.5


def test_a_pull_of_a_run_that_is_to_be_read_from_a_copy_of_the_folder_ends_it_too(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    with at_work(store):
        pass
    (store / "membership.json").unlink()  # the run has ended, as far as the next one knows
    with process(store) as p:
        p.ready()
        store_is_moved(store)
        shutil.copytree(store.with_name("kept"), store)
        with pytest.raises(grpc.RpcError, match="was moved, removed or unmounted"):
            p.pull(0)
        code, said = p.ended()
    assert code == 40
    assert "was moved, removed or unmounted" in one_sentence(said)
