"""Which data a job's replica leases, and how much at a time."""

from __future__ import annotations

from syncline.replica import Replica
from syncline.train.config import JobConfig
from syncline.train.inputs import Feed
from syncline.train.sets import Sets
from syncline_proto.leased import Dataset


def lease(feed: Feed, job: JobConfig, sets: Sets, replica: Replica, *, ranks: int) -> None:
    """Let ``feed`` follow what this life of the replica is leased, if it takes part in a run.

    Raises:
        ConfigError, DataError: as ``Replica.order`` does.
    """
    if not (replica.active and job.data.leased):
        return
    named = Dataset(sequences=len(sets.train), seed=job.data.seed, content=sets.content)
    batch = job.train.micro_batch * ranks
    round_ = replica.settings.sync_every * job.train.accumulate * batch
    feed.follow(replica.order(named, batch, round_))
