"""What answers look like, for OpenAPI: one example of each kind of answer, shown wherever it is."""

from __future__ import annotations

from typing import Any

from syncline_proto import leased, reports, rest
from syncline_proto.ranges import Range
from syncline_proto.settings import RunSettings

AT = 1_767_225_600.0
RUN = rest.RunView(name="my-run", state=rest.RunState.RUNNING, settings=RunSettings(),
                   settings_version=1, created_at=AT, revision=7, fragment_rounds=7,
                   committed_tokens=917_504, loss=1.92)  # fmt: skip
SERVICE = rest.SyncEndpoint(name="sync-0", address="10.0.0.5:50051")
SET: dict[str, Any] = {"settings": RUN.settings, "settings_version": 1}
WHO: dict[str, Any] = {"replica": "replica-0", "incarnation": 1}
PUSH = reports.ContributionView(**WHO, verdict="accepted", weight=1.0, norm=0.42, tokens=131_072)
MEMBERS = rest.RunMembership(run="my-run", state=RUN.state, members=[rest.Member(**WHO)], **SET)
ALL = (
    RUN, SERVICE, rest.SyncServiceAnswer(lease_s=10.0),
    rest.Registration(**WHO, ordinal=0, lease_s=10, heartbeat_s=2, run=RUN,
                      sync_services=[SERVICE]),
    rest.HeartbeatAnswer(lease_s=10.0, run_state=RUN.state, **SET),
    rest.ReplicaView(**WHO, state=rest.ReplicaState.ALIVE, host="gpu-17", joined_at=AT),
    rest.Membership(version=12, runs=[MEMBERS]),
    reports.RoundReport(fragment=0, fragment_name="embeddings", kind="pseudo-gradient", revision=7,
                     committed_at=AT, seconds=0.8, committed_tokens=917_504, contributions=[PUSH]),
    rest.MetricSeries(replica="replica-0", kind="train", tokens=[131_072], loss=[3.1], time=[AT]),
    rest.Event(id=3, time=AT, run="my-run", replica="replica-0", kind="replica.joined",
               message="replica-0 joined."),
    leased.DataGrant(number=3, ranges=[Range(0, 512, 1024)]),
    leased.DataView(dataset=leased.Dataset(sequences=900, seed=0), epoch=1, trained=909, leased=96,
                    epochs=[leased.EpochView(epoch=0, trained=900, excluded=0, leased=0, free=0),
                            leased.EpochView(epoch=1, trained=9, excluded=0, leased=96, free=795)],
                    holders=[leased.HolderView(replica="replica-0", sequences=96)]),
    rest.Problem(title="Not Found", status=404, code="RUN_UNKNOWN", detail="There is no run x."),
)  # fmt: skip
SHOWN = {type(one).__name__: one.model_dump(mode="json") for one in ALL}
LISTED = {"RunView": RUN.model_dump(mode="json", exclude={"job"})}
"""What a list has another form of."""


def show(responses: dict[str, Any]) -> None:
    """Give every answer of an operation its example."""
    for answer in responses.values():
        for content in answer.get("content", {}).values():
            schema = content.get("schema", {})
            of = schema.get("items", schema).get("$ref", "").rpartition("/")[2]
            if of in SHOWN:
                content["example"] = [LISTED.get(of, SHOWN[of])] if "items" in schema else SHOWN[of]
