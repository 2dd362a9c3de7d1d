"""Numbers that the pages promise are those of the code: to change one side alone fails here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fuzz import flood
from syncline import exchange, heartbeat, stalled
from syncline.core.barren import BARREN_MAX, BARREN_TOLD
from syncline.launch.checkpoints import CUTS_MAX
from syncline.outage import SAY_AFTER_S
from syncline.setbacks import BACK_AFTER, RETURNS_MAX, SKIPS_MAX
from syncline_control import descriptors, intake, parser, server, state, transaction
from syncline_control.body import DEPTH_MAX, KEYS_MAX
from syncline_control.operations import points, reports
from syncline_control.problems import Unauthorized
from syncline_control.routes.runs import LIVE_CHANGE
from syncline_control.settings import ControlSettings
from syncline_proto import codec, counts, layout, spans
from syncline_proto.codec import difference
from syncline_proto.depot import PIECE_BYTES
from syncline_proto.errors import (
    CheckpointDamaged,
    CheckpointError,
    ConfigError,
    InvalidRequest,
    RunConflict,
    SynclineError,
    TrainingDiverged,
)
from syncline_proto.exporter import REQUEST_S, REQUESTS_MAX
from syncline_proto.merging import PenaltySettings
from syncline_proto.names import NAME_PATTERN
from syncline_proto.rest import WHY_CHARACTERS_MAX, SyncEndpoint
from syncline_proto.settings import PRESETS, DownCodecName, RunSettings, TimeoutSettings
from syncline_proto.status import CODE_TRAILER, NEWEST_TRAILER, ROOM_HEADER, STATUS
from syncline_sync import aside, copies
from syncline_sync.allocator import LEFT_BYTES
from syncline_sync.core import detector, few, merge, record
from syncline_sync.core.untold import UNTOLD_CHARACTERS_MAX
from syncline_sync.disk import STOP_S
from syncline_sync.lingering import LINGER_S
from syncline_sync.lull import LATEST_S, QUIET_S
from syncline_sync.process import LAST_REPORTS_S
from syncline_sync.reading import (
    HELD_MAX,
    LARGE,
    MIDDLING,
    MIDDLING_MAX,
    THING_BYTES,
    UNDER_WAY_MAX,
)
from syncline_sync.residence import SWEEP_S
from syncline_sync.run import LOOKS
from syncline_sync.senders import ENDING_MAX, SENDERS_MAX
from syncline_sync.servicer import HEADER_WAIT_S
from syncline_sync.serving import (
    CALLERS_MAX,
    CALLERS_SHARE,
    CALLS_MAX,
    CHANNEL_OPTIONS,
    PENDING_MAX,
    PENDING_S,
    PROBE_OPTIONS,
    PROBES_MAX,
    PROBES_SHARE,
)
from syncline_sync.settings import SyncSettings
from syncline_sync.shard import COUNT_MAX, RANKS_MAX
from syncline_sync.shelf import Shelf

ROOT = Path(__file__).parents[2]
LAN, WAN = TimeoutSettings(profile="lan"), TimeoutSettings(profile="wan")
SYNC, CONTROL, RUN = SyncSettings.model_fields, ControlSettings.model_fields, RunSettings()
CHANNEL, PROBE = dict(CHANNEL_OPTIONS), dict(PROBE_OPTIONS)
SMALL = dict(enumerate(["no", "one", "two", "three", "four", "five", "six", "seven", "eight"]))
SHARES = {2: "half", 4: "quarter", 8: "eighth"}
SECONDS = {0.1: "a tenth of a second", 1.0: "a second", 3600.0: "an hour"}


def mib(size: int) -> str:
    assert size % (1 << 20) == 0
    return f"{size >> 20} MiB"


def in_words(names: Iterable[str]) -> str:
    *others, last = (f"`{name}`" for name in names)
    return f"{', '.join(others)} and {last}"


def power(number: int) -> str:
    exponent = number.bit_length() - 1
    assert number == 1 << exponent
    return f"2^{exponent}"


def written(name: str, values: codec.Float32) -> str:
    """The bytes of an example, in hex."""
    return bytes(codec.encode(values, codec.CODEC_BY_NAME[name])).hex(" ")


def follows() -> bytes:
    """The difference that leads to what its example says."""
    wanted = np.ones(258, np.float32)
    wanted[[0, 254, 255, 256]] = 1 + 127 * 2.0**-8, 1.25, 0.75, 1 + 127 * 2.0**-10
    held = np.empty(258, np.uint16)
    codec.publish(held, np.ones(258, np.float32))
    told = codec.advance(held, wanted)
    assert told is not None
    assert codec.decode(held.data.cast("B"), codec.CODEC_BY_NAME["bf16"])[254:].tolist() == [
        1.25, 0.75, 1.125, 1,
    ]  # fmt: skip
    return bytes(codec.cut(told, np.array([[254, 4]])))


FIVE = np.array([1, -0.5, 0.25, 0, 0.125], np.float32)
SPARSE = np.zeros(150, np.float32)
SPARSE[[0, 70, 149]] = 1, -3, 5

PROTOCOL = [
    f"has {CALLS_MAX:,} calls already",
    f"or {PENDING_MAX:,} calls wait to be taken up by it, or this one did so for {PENDING_S} s",
    f"match `{NAME_PATTERN}`",
    f"REST, at the control plane (default port {CONTROL['port'].default})",
    f"gRPC, at the sync service (default port {SYNC['port'].default})",
    f"a plain port of its own (default {SYNC['health_port'].default})",
    f"({WHY_CHARACTERS_MAX:,} characters at most)",
    f"the settings that are named (`{json.dumps(LIVE_CHANGE['outer'].get('value'))}`, say;",
    f"a list, with no object around it, of objects with {in_words(SyncEndpoint.model_fields)} |",
    f"ours do after {BARREN_MAX} rounds in a row",
    f"header says ({RANKS_MAX:,} at most, INVALID_ARGUMENT)",
    f"`last_step` are at most 2^40 ({COUNT_MAX:,})",
    f"a message has over {mib(CHANNEL['grpc.max_receive_message_length'])}, or metadata",
    f"A gRPC message has at most {mib(CHANNEL['grpc.max_receive_message_length'])}",
    f"ping every {CHANNEL['grpc.http2.min_ping_interval_without_data_ms'] // 1000} s",
    # REST bodies and connections.
    f"UTF-8 of at most {mib(intake.BODY_BYTES_MAX)}",
    f"nested at most {DEPTH_MAX} deep",
    f"{intake.VALUES_MAX:,} values or {intake.GROUPS_MAX:,} lists and objects",
    f"an object of more than {KEYS_MAX:,} keys",
    f"at most {parser.CHUNKS_FREE}, and one more for each {parser.CHUNK_BYTES} bytes",
    f"head or trailer of much over {server.HEAD_BYTES_MAX >> 10} KiB",
    f"Past {descriptors.CONNECTIONS_MAX:,} connections",
    f"must come within {intake.BODY_S:g} s ({intake.BodyTooSlow.http_status} `UNREACHABLE`)",
    f"below `/v1` have one ({intake.BodyTooLarge.http_status})",
    f"being read pass {mib(intake.BODIES_BYTES_MAX)} together",
    f"{state.POLLS_MAX} calls wait for the membership",
    f"{state.STREAMS_MAX} event streams are open",
    f"does not begin within {server.HEAD_S:g} s is closed, an idle one after "
    f"{server.KEEP_ALIVE_S} s",
    f"less than {server.TAKEN_BYTES >> 10} KiB of an answer in {server.TAKEN_S:g} s",
    f"a count is over {power(reports.COUNT_MAX + 1)} - 1",
    # Layouts.
    f"at most {power(layout.FRAGMENT_ELEMENTS_MAX)} elements",
    f"at most {counts.DIMENSIONS_MAX} dimensions, a name at most {counts.NAME_MAX:,} characters",
    f"at most {counts.TENSORS_MAX:,} names, aliases included",
    f"at most {layout.FROZEN_MAX} characters",
    f"at most {counts.BOXES_MAX:,} boxes",
    f"at most {power(counts.CORNERS_MAX)} corners",
    f"more than {power(spans.SPANS_MAX)} spans",
    f"more than {power(spans.LOOKS_MAX)} looks",
    # Pushes and pulls.
    f"({LAN.call_s:g} s in the lan profile, {WAN.call_s:g} s in the wan profile) is cut",
    f"whose header does not come within {HEADER_WAIT_S:g} s is `{InvalidRequest.code}`",
    f"room for the push, and names `{ROOM_HEADER}`",
    f"for as long (or an {SHARES[LOOKS]} more)",
    f"The last {SMALL[record.KEPT]} revisions are kept",
    f"The last {SMALL[record.KEPT]} steps are kept",
    f"to {SENDERS_MAX} pulls at a time",
    f"over {Shelf.HEAD_START_S:g} s after its service began to write it",
    f"of more than {LARGE >> 10} KiB while the calls of {mib(HELD_MAX)} of such have not ended",
    f"one of {MIDDLING >> 10} to {LARGE >> 10} KiB while those of {mib(MIDDLING_MAX)} of such",
    f"each box, tensor and fragment in it counts as {THING_BYTES} bytes at least",
    f"Any call is refused likewise while {UNDER_WAY_MAX:,} are under way",
    f"for {LAN.call_s:g} s (lan; {WAN.call_s:g} s wan) is cut",
    f"While {ENDING_MAX} cut pulls of a run",
    f"{LAN.give_up_s:g} s (lan; {WAN.give_up_s:g} s wan) after its revision was dropped",
    f"the trailer `{CODE_TRAILER}`",
    f"the trailer `{NEWEST_TRAILER}`",
    # Codecs.
    *(
        f"| `CODEC_{each.name.upper()}` ({each.number}) | {block} | {each.size(block):,} | "
        f"{each.grain:,} |"
        for each, block in zip(codec.CODECS, (1, 1, 256, 32, 4096), strict=True)
    ),
    *(
        f"| {name} | 1, −0.5, 0.25, 0, 0.125 | `{written(name, FIVE)}` |"
        for name in ("int8", "int4")
    ),
    f"shorter than {difference.SPAN_LEAST} elements on average",
    f"| elements 254 to 257 of 258 | 1, 1, 1, 1 | `{follows().hex(' ')}` | 1.25, 0.75, 1.125, 1 |",
    f"0 is 1, 70 is −3, 149 is 5; the rest 0 | `{written('topk', SPARSE)}` | 2, −2, 5;",
    f"at most {mib(codec.CHUNK_BYTES_MAX)} ({codec.CHUNK_BYTES_MAX:,} bytes)",
    # The merge.
    f"(‖D‖ + {merge.CLIP_EPSILON:.0e})".replace("e-0", "e-"),
    f"(or over {detector.NORM_LIMIT:.0e})".replace("e+", "e"),
    f"once {detector.POOLED_PUSHES_MIN} pushes were accepted",
    f"max(deviation, {detector.DEVIATION_FLOOR:g} · mean)",
    f"{SMALL[detector.EXCLUSIONS_MAX].capitalize()} finite exclusions of a replica in a row",
    f"{SMALL[detector.BAD_ROUNDS_MAX]} rounds in a row with more than half",
    f"every {SHARES[round(LAN.lease_s / LAN.heartbeat_s)]} of it",
]

UNANSWERED_S = exchange.CLOSE_S + stalled.CLOSE_S + heartbeat.CLOSE_S
LAN_CALLS_S, WAN_CALLS_S = (UNANSWERED_S + 2 * one.connect_s for one in (LAN, WAN))
"""Of a replica that leaves; and a last heartbeat has twice half a lease."""

OPERATIONS = [
    f"{SMALL[flood.HOGS]} of these at a time: at most {mib(flood.CONSTANT + flood.PIECES_LONG)} "
    "beside the budget",
    f"short form of the suite at most {(flood.CONSTANT + flood.PIECES) >> 20},",
    f"at most {mib(flood.GROWTH)} more than after the first time",
    f"for each call that waits, {UNDER_WAY_MAX:,} at a time",
    f"each {SWEEP_S:g} s they go back, once they are {mib(LEFT_BYTES)} more than before",
    f"for up to {PENDING_MAX:,} calls that the service has not taken up yet, {CALLS_MAX:,} of one",
    f"`lease` + {LAN_CALLS_S:g} s (lan; {WAN_CALLS_S:g} s wan) for calls that nobody answers: "
    f"{LAN.round_deadline_s + LAN.lease_s + LAN_CALLS_S:g} s with the lan profile's defaults, "
    f"{WAN.round_deadline_s + WAN.lease_s + WAN_CALLS_S:g} s with wan's",
    f"{CONTROL['port'].default}: REST, the page",
    f"{SYNC['port'].default}: gRPC with health and reflection; "
    f"{SYNC['health_port'].default}: plain gRPC health; "
    f"{SYNC['metrics_port'].default}: `/metrics`",
    f"newest {transaction.EVENTS_KEPT:,} events, {reports.ROUNDS_KEPT:,} rounds a run, "
    f"and {points.POINTS_MAX:,} points",
    f"after {SAY_AFTER_S:g} s their log says so",
    f"has not taken ({UNTOLD_CHARACTERS_MAX >> 10} KiB of a fragment's earlier rounds",
    f"not heard yet, and that it ends ({LAST_REPORTS_S:g} s at most;",
    f"it waits {STOP_S:g} s for the disk",
    f"After {SMALL[BACK_AFTER]} in a row a replica takes the run's newest revision",
    f"the {['first', 'second', 'third'][RETURNS_MAX]} time without a round in between ends it (50)",
    f"in the synchronous phase, {SMALL[SKIPS_MAX]} in a row end it",
    f"after {BARREN_TOLD} such rounds in a row",
    f"after {BARREN_MAX} they end ({TrainingDiverged.exit_code})",
]

CONFIGURATION = [
    f"| `lease` | {LAN.lease_s:g} s | {WAN.lease_s:g} s |",
    f"| `round_deadline` | {LAN.round_deadline_s:g} s | {WAN.round_deadline_s:g} s |",
    f"ends after {BARREN_MAX} rounds (exit code {TrainingDiverged.exit_code})",
    f"every {SHARES[round(LAN.lease_s / LAN.heartbeat_s)]} of it",
    f'`down` (parameters), each `"fp32"` or `"{RUN.codec.up}"` (default)',
    *(
        f"| `{each.name}` | 1/{round((4 << 20) / each.size(1 << 20))} |"
        for each in codec.CODECS
        if each.name not in ("fp32", "bf16")
    ),
    f'one `profile`, `"{RUN.timeouts.profile}"` (default)',
    "| `diloco` | outer {outer.lr:g} / {outer.momentum:g}, no clip".format(
        outer=RunSettings(strategy="diloco").outer
    ),
    "| `edit-paper` | as `edit` with temperature {penalty.temperature:g}, ratio_min "
    "{penalty.ratio_min:g}, outer {outer.lr:g} / {outer.momentum:g} |".format(
        **dict(RunSettings(strategy="edit-paper"))
    ),
    "| `a-edit` | as `edit` by time: `sync_seconds` {sync_seconds:g} as in the paper, `step_power` "
    "{penalty.step_power:g} |".format(**dict(RunSettings(strategy="a-edit"))),
    "| `local-sgd` | outer lr {outer.lr:g}, momentum {outer.momentum:g}, no clip".format(
        outer=RunSettings(strategy="local-sgd").outer
    ),
]

README = [
    f"`min_replicas` ({RUN.min_replicas} unless you set it)",
    f"`min_replicas`, which is {RUN.min_replicas})",
    f"`ratio_max` ({PenaltySettings().ratio_max:g}) times",
    f"taken in after {SMALL[detector.EXCLUSIONS_MAX]} rounds",
]

DEPLOYMENT = [
    f"`SYNCLINE_SYNC_STAGING_BYTES` ({SYNC['staging_bytes'].default >> 30} GiB)",
    f"replicas wait {SMALL[int(LAN.give_up_s / 60)]} minutes (lan), an hour (wan)",
    f"{PROBE['grpc.max_concurrent_streams']} calls on a connection, which ends "
    f"after {PROBE['grpc.max_connection_age_ms'] // 1000} s",
    f"says nothing is closed after {CHANNEL['grpc.server_handshake_timeout_ms'] // 1000} s, "
    f"on `/metrics` too, which answers {REQUESTS_MAX} requests",
    f"the gRPC port takes {CALLERS_MAX:,} connections",
    f"the health port {PROBES_MAX}, and no more than 1/{1 / CALLERS_SHARE:g} "
    f"and 1/{1 / PROBES_SHARE:g} of that limit",
]

TWO_MACHINES = [
    *(
        f"| `{each.name}`{' (default)' * (each.name == RUN.codec.up)} | "
        f"{round(each.size(1 << 20) / (1 << 20), 3):g} | yes | "
        f"{'yes' if each.name in get_args(DownCodecName) else 'no'} |"
        for each in codec.CODECS
    ),
    f"leases of {WAN.lease_s:g} s, and patience of an hour",
    f"until the lease has run out ({WAN.lease_s:g} s;",
    f"replicas wait up to an hour (`lan`: {SMALL[int(LAN.give_up_s / 60)]} minutes)",
]

CHECKPOINTS = [
    f"in pieces of {mib(PIECE_BYTES)}",
    f"Of each fragment the {SMALL[record.KEPT]} newest revisions are kept",
    f"the save is tried {CUTS_MAX} times",
    f"A service does {copies.CALLS_MAX} such calls at a time",
    f"told to end, that waits {copies.END_S:g} s",
    f"no byte has moved for {copies.STILL_S:g} s the log says which call",
    f"keeps it for {SECONDS[aside.KEPT_S]}, for the same restore said again",
    f"says which, and ends with exit code {ConfigError.exit_code}",
    f"The exit code is {CheckpointDamaged.exit_code} where one of them is damaged, and "
    f"{CheckpointError.exit_code} where the place itself is not there",
    f"names it (exit code {CheckpointDamaged.exit_code}, or {CheckpointError.exit_code})",
    f"of the same name is refused (exit code {RunConflict.exit_code})",
]

BENCHMARKS = [f"up to {SMALL[few.FEW_MAX]} pushes", f"within {SECONDS[LINGER_S]} of each other"]

ARCHITECTURE = [
    f"wait for more, for {SECONDS[LINGER_S]} at most",
    f"no values have moved for {SECONDS[QUIET_S]} (`lull.py`), "
    f"after {SMALL[int(LATEST_S)]} at most",
    f"The last {SMALL[record.KEPT]} revisions are kept",
]

PROMISES = {
    "ARCHITECTURE.md": ARCHITECTURE,
    "docs/benchmarks.md": BENCHMARKS,
    "docs/checkpoints.md": CHECKPOINTS,
    "docs/protocol.md": PROTOCOL,
    "docs/operations.md": OPERATIONS,
    "docs/configuration.md": CONFIGURATION,
    "docs/deployment.md": DEPLOYMENT,
    "docs/two-machines.md": TWO_MACHINES,
    "README.md": README,
}


def text_of(page: str) -> str:
    """A page as one line."""
    return re.sub(r"\s+", " ", (ROOT / page).read_text())


@pytest.mark.parametrize(
    ("page", "promise"), [(page, promise) for page, said in PROMISES.items() for promise in said]
)
def test_a_page_says_what_the_code_has(page: str, promise: str) -> None:
    assert promise in text_of(page)


def test_an_hour_is_what_the_wan_profile_gives() -> None:
    assert WAN.give_up_s == 3600


def test_connections_that_say_nothing_go_alike_and_idle_ones_after_an_hour() -> None:
    assert CHANNEL["grpc.server_handshake_timeout_ms"] / 1000 == REQUEST_S
    assert CHANNEL["grpc.max_connection_idle_ms"] == 3_600_000


def test_every_strategy_is_told() -> None:
    page = (ROOT / "docs/configuration.md").read_text().partition("| strategy |")[2]
    told = re.findall(r"^\| `([a-z-]+)` \|", page.partition("\n\n")[0], flags=re.MULTILINE)
    assert told == list(PRESETS)
    for strategy in ("local-sgd", "diloco"):
        chosen = RunSettings.model_validate({"strategy": strategy})
        assert chosen.outer.clip is None and not chosen.penalty.enabled


def test_the_errors_of_the_wire_are_those_of_the_tree() -> None:
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| ([A-Z_]+) \| (\d+)", (ROOT / "docs/protocol.md").read_text(), re.M
    )
    kinds = {kind.code: kind for kind in STATUS}
    assert rows
    for code, status, http in rows:
        kind = kinds[code]
        assert status == STATUS[kind].name, code
        answered = Unauthorized if code == Unauthorized.code else kind
        assert int(http) == answered.http_status, code
    away = {code for code, _, _ in rows} ^ {code for code in kinds if code != SynclineError.code}
    # What only a process at its own end can meet is no answer of a service.
    assert away == {
        "CALLED_OFF", "DIVERGED", "FILE_MISSING", "PORT_IN_USE", "PROCESS_FAILED",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["int8", "int4", "topk"])
def test_the_examples_of_codecs_decode_to_what_the_page_says(name: str) -> None:
    page = (ROOT / "docs/protocol.md").read_text()
    row = re.search(rf"^\| {name} \| .* \| `([0-9a-f ]+)` \| (.*) \|$", page, re.M)
    assert row is not None
    data, told = bytes.fromhex(row[1]), row[2].replace("−", "-")
    number = codec.CODEC_BY_NAME[name]
    if name == "topk":
        decoded = codec.decode(data, number, SPARSE.size)
        expected = [float(value) for value in told.partition(";")[0].split(",")]
        assert decoded[SPARSE != 0].tolist() == expected
        assert not decoded[SPARSE == 0].any()
    else:
        scale, whole = told.removeprefix("s = ").split("; q = ")
        expected = float(scale) * np.array(whole.split(","), np.float64)
        assert codec.decode(data, number, FIVE.size) == pytest.approx(expected, rel=1e-6)
