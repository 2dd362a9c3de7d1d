"""What was sent, what was answered, and what the store has committed of it: each push once.

Every revision is read from its file as soon as a client has it, before a client may push from it:
so the service, which keeps two, still has it then. Its parameters, momentum, tokens and
contributions must be those that the reference gets from what was sent. Believes nothing that the
service says of itself but the order of folding; and its factors, once they are seen to be right.

A service that publishes before it writes may lose the newest revision of a fragment in a kill,
under a new epoch. So there the newest is only noted when it is seen, and read when the next one is:
its file is there by then. What goes back is taken out again, one revision at most.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chaos.account import Account
from chaos.factors import Factors, Measured
from chaos.ranks import judged
from chaos.reference import Float32, Folded, Window, advanced, bf16, decoded, merged
from syncline_proto.codec import crc32c
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb

COUNTED = (pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS)
"""Verdicts of pushes that are in a round."""

WITH_FEEDBACK = (pb.CODEC_INT4, pb.CODEC_TOPK)
"""Codecs whose loss comes with the next push; what others lose is gone."""

Key = tuple[str, int, int, int]
"""(replica, incarnation, fragment, seq)."""

Row = tuple[Key, int, int]
"""(push, verdict, age) of a revision."""


@dataclass(slots=True)
class Sent:
    """One push: what it carries, and the last that its replica heard of it."""

    key: Key
    work: int
    """The progress in it: a push that was STALE goes out again as another with the same work."""
    header: pb.PushHeader
    payloads: list[bytes]
    """By rank; gone once it is merged."""
    ranks: list[pb.PushHeader]
    judged: pb.Verdict.ValueType = pb.VERDICT_UNSPECIFIED
    taken: int = 0
    """How often it was folded: more than once if kills undid that."""
    has_ended: bool = False
    """Its replica's life is over: whoever lives on has dropped it."""
    anchor: int = 0
    """The checksum of the value that its progress began from."""

    progress: Float32 | None = None
    """None in an offer; gone with the payloads."""
    owed: Float32 | None = None
    """What was added to it, that earlier ones had lost."""
    residual: pb.ResidualAction.ValueType = pb.RESIDUAL_ACTION_UNSPECIFIED
    """What the last answer has said of that."""

    @property
    def is_in_blocks(self) -> bool:
        """Whether its blocks of int8 are those of the whole fragment."""
        return self.header.codec == pb.CODEC_INT8 and len(self.ranks) == 1

    def values(self) -> Float32:
        sizes = [math.prod(header.boxes[0].sizes) for header in self.ranks]
        parts = zip(self.payloads, sizes, strict=True)
        return np.concatenate([decoded(part, self.header.codec, n) for part, n in parts])


@dataclass(frozen=True, slots=True)
class Seen:
    """A revision that somebody has, and that need not be on the disk."""

    revision: int
    tokens: int
    rows: list[Row]
    payload: bytes


@dataclass(slots=True)
class Line:
    """One fragment, revision by revision; ``revision`` is the newest whose file was read."""

    parameters: Float32
    momentum: Float32
    factors: Factors
    revision: int = -1
    tokens: list[int] = field(default_factory=list)
    contributions: list[list[Row]] = field(default_factory=list)
    published: dict[int, bytes] = field(default_factory=dict)
    """The newest revisions in bf16, as everyone must get them, and may push from them."""
    window: Window | None = None
    """Of a run whose rounds do not wait."""
    epoch: int = 1
    seen: Seen | None = None
    """The one after ``revision``, if that is out."""

    @property
    def newest(self) -> int:
        return self.seen.revision if self.seen else self.revision


class Ledger:
    """All fragments of one run, with the folder of each."""

    def __init__(
        self, folders: Sequence[Path], sizes: Sequence[int], settings: RunSettings
    ) -> None:
        self._folders, self._settings = folders, settings
        self._behind = settings.durability == "async"
        self.lines = [
            Line(
                np.zeros(n, np.float32),
                np.zeros(n, np.float32),
                Factors(settings.penalty, settings.sync_every, settings.window),
            )
            for n in sizes
        ]
        size = settings.window or 1
        if settings.asynchronous:
            for line in self.lines:
                line.window = Window(size)
        self._window = size
        self._oldest = settings.age_max * size + size - 1
        """Revisions that the base of a push may lie behind which counts."""
        self.sent: dict[Key, Sent] = {}
        self.accounts: dict[tuple[str, int, int], Account] = {}
        """Of each replica's life and fragment, where a revision is read once it is seen."""
        self.committed: dict[Key, int] = {}
        self.twice = 0
        self.rescaled = 0
        self.late = 0
        """Pushes that were committed with an age."""
        self.differences = 0
        """Pulls that were answered with one."""
        self.pairs = 0
        """Rounds of two whole pushes in int8, which may be stepped as they came: with no sum."""
        self.alone = 0
        """Ranks that came again alone, since the others had heard that their push is STALE."""
        self.undone: list[Key] = []
        """Pushes of revisions that went back; ``went_back`` counts those."""
        self.went_back = 0
        self._worked: dict[int, Key] = {}
        """Which push has brought a work in."""
        self._heard: dict[tuple[str, int], tuple[int, int, int]] = {}

    @property
    def revisions(self) -> int:
        return sum(line.newest for line in self.lines)

    def send(self, sent: Sent) -> Sent:
        assert sent.key not in self.sent, "a seq is used once"
        self.sent[sent.key] = sent
        return sent

    def answered(self, sent: Sent, answer: pb.PushResponse) -> pb.Verdict.ValueType:
        """Take note of a verdict; how the push was judged in the end."""
        sent.judged, sent.residual = judged(answer), answer.residual
        sent.taken += answer.verdict == pb.VERDICT_ACCEPTED
        if answer.verdict in COUNTED and sent.header.HasField("base_revision"):
            base, result = sent.header.base_revision, answer.result_revision
            if answer.counts_in:
                assert answer.counts_in == result + 1, sent.key
                assert 0 < result - base <= self._oldest, sent.key
            elif self._settings.asynchronous:
                assert 0 < result - base <= self._oldest + 1, sent.key
            else:
                assert result == base + 1, sent.key
        return sent.judged

    def heard(self, who: str, fragment: int, epoch: int, revision: int, tokens: int) -> None:
        """Somebody has been told where a fragment stands: never less than before in its epoch.

        A new epoch, which only an async run may have, takes one revision at most.
        """
        before = self._heard.get((who, fragment), (1, 0, 0))
        now = (epoch, revision, tokens)
        same = before[0] == epoch and before[1] <= revision and before[2] <= tokens
        anew = self._behind and before[0] < epoch and before[1] <= revision + 1
        assert same or anew, f"{who}: {before}, and then {now}"
        self._heard[who, fragment] = now

    def pulled(self, fragment: int, header: pb.PullHeader, payload: bytes) -> None:
        """A revision has come: it must be what the reference has, and so must its file."""
        line, number = self.lines[fragment], header.revision
        if header.epoch < line.epoch:
            return  # somebody else has heard since that the run went back
        if header.epoch > line.epoch:
            self._go_back(line, header)
        self.read(fragment, number - 1 if self._behind else number)
        rows: list[Row] = [
            ((c.replica, c.incarnation, fragment, c.seq), c.verdict, c.age)
            for c in header.contributions
        ]
        what = f"fragment {fragment}, revision {number}, epoch {header.epoch}"
        if number <= line.revision:
            assert rows == line.contributions[number], what
            assert header.committed_tokens == line.tokens[number], what
            assert line.published.get(number, payload) == payload, what
            return
        seen = Seen(number, header.committed_tokens, rows, payload)
        if line.seen is None:
            line.seen = seen
            for key, _, age in rows:
                self._enter(key, number, age)
        assert line.seen == seen, what

    def read(self, fragment: int, number: int) -> None:
        """Read the files up to revision ``number``: they must be there."""
        line = self.lines[fragment]
        while line.revision < number:
            self._read(fragment, line.revision + 1)

    def _go_back(self, line: Line, header: pb.PullHeader) -> None:
        """The first word of a new epoch: it has all but the newest revision, and perhaps that."""
        assert self._behind, f"epoch {header.epoch}: nothing that was published may be lost"
        assert header.revision >= line.revision, f"more than one is lost: {line.newest}, {header}"
        line.epoch = header.epoch
        if line.seen is None or header.revision >= line.seen.revision:
            return
        self.went_back += 1
        for key, _, _ in line.seen.rows:
            del self.committed[key]
            del self._worked[self.sent[key].work]
            self.undone.append(key)
        line.seen = None

    def lost(self) -> list[Key]:
        """Pushes that were last said to be in a round, of lives that go on, and are in none."""
        return [
            sent.key
            for sent in self.sent.values()
            if sent.judged in COUNTED
            and not sent.has_ended
            and sent.key not in self.committed
            and sent.key not in self.undone
        ]

    def close(self) -> None:
        """Everyone has stopped: what was refused for good is in no revision."""
        refused = [key for key in self.committed if self.sent[key].judged == pb.VERDICT_STALE]
        assert not refused, f"STALE, and yet committed: {refused}"

    def _read(self, fragment: int, number: int) -> None:
        """Read a revision that is new to us from the store, and merge it ourselves."""
        line = self.lines[fragment]
        saved, parameters, momentum = self._file(fragment, number)
        assert saved["revision"] == number
        pushes, rows, tokens = list[Measured](), list[Row](), line.tokens[-1] if line.tokens else 0
        for row in saved["contributions"]:
            key = (row["replica"], row["incarnation"], fragment, row["seq"])
            age = row["age"]
            sent = self._enter(key, number, age)
            self.late += age > 0
            rows.append((key, row["verdict"], age))
            assert row["verdict"] in COUNTED
            if row["verdict"] == pb.VERDICT_ACCEPTED:
                self.rescaled += row["rescale"] != 1.0
                assert row["folded"] > 0.0, key
                rounds = max(0, age - self._window + 1) / self._window
                kept = (1.0 + rounds) ** -self._settings.late.power
                folded = Folded(sent.values(), row["folded"], row["rescale"], kept)
                pushes.append(Measured(key[0], folded, sent.header.inner_steps, age))
                tokens += sent.header.tokens if number else 0
            else:
                assert (row["folded"], row["rescale"]) == (0.0, 1.0)
        who = {(key[0], age > 0) for key, _, age in rows}
        assert len(who) == len(rows), "of a replica a round has one push in time, and one late"
        if number == 0:
            (offer,) = pushes
            line.parameters = offer.folded.values
        else:
            own = saved["reports"][-1]
            assert own["revision"] == number
            line.factors.enter(pushes)
            folded = [push.folded for push in pushes]
            counted = [self.sent[key] for key, verdict, _ in rows if verdict == pb.VERDICT_ACCEPTED]
            self.pairs += len(counted) == 2 and all(sent.is_in_blocks for sent in counted)
            line.parameters, line.momentum = merged(
                line.parameters, line.momentum, folded, self._settings.outer, own["clip_factor"],
                line.window,
            )  # fmt: skip
            accepted = [age for _, verdict, age in rows if verdict == pb.VERDICT_ACCEPTED]
            self._see_window(line, saved, accepted)
        published = self._published(line, number)
        where = f"fragment {fragment}, revision {number}"
        if line.seen is not None:
            seen = Seen(number, tokens, rows, published)
            assert line.seen == seen, f"{where}: on the disk is what nobody has seen"
            line.seen = None
        assert line.parameters.tobytes() == parameters.tobytes(), f"{where}: other parameters"
        assert line.momentum.tobytes() == momentum.tobytes(), f"{where}: another momentum"
        assert tokens == saved["committed_tokens"], f"{where}: other tokens"
        for key, verdict, _ in rows:
            self._account(self.sent[key], verdict == pb.VERDICT_ACCEPTED)
        line.revision = number
        line.tokens.append(tokens)
        line.contributions.append(rows)
        line.published[number] = published
        line.published.pop(number - 1 - max(2, self._oldest), None)

    def _account(self, sent: Sent, accepted: bool) -> None:
        """A push is merged: what came of it is known, and it is forgotten."""
        if sent.progress is not None:
            account = self.accounts.setdefault(sent.key[:3], Account(sent.progress.size))
            values = sent.values()
            if sent.header.codec not in WITH_FEEDBACK:
                values = sent.progress if sent.owed is None else sent.progress + sent.owed
            account.enter(sent.progress, sent.owed, values if accepted else None)
        sent.payloads, sent.progress, sent.owed = [], None, None

    def _see_window(self, line: Line, saved: dict[str, Any], ages: list[int]) -> None:
        """Go on with the window, which must be stored as ours."""
        if line.window is not None:
            line.window = line.window.after(ages)
            theirs = {name: saved["window"][name] for name in ("size", "done", "number", "age")}
            assert theirs == asdict(line.window), "the window stands elsewhere"

    def _published(self, line: Line, number: int) -> bytes:
        """What everyone must get of a revision whose parameters are known."""
        if self._settings.codec.down == "int8" and number:
            return advanced(line.published[number - 1], line.parameters)
        return bf16(line.parameters)

    def _enter(self, key: Key, number: int, age: int) -> Sent:
        """A push is in a revision: it was sent, from one so old, and is in no other."""
        sent = self.sent.get(key)
        assert sent is not None, f"{key} is in revision {number}, and was never sent"
        seen = self.lines[key[2]].seen
        if seen is not None and self.committed.get(key) == number == seen.revision:
            return sent  # it was seen, and now it is read
        first = self._worked.setdefault(sent.work, key)
        if key in self.committed or first != key:
            self.twice += 1
            raise AssertionError(f"{key} is in revision {number}; {first} brought the same before")
        if sent.header.kind != pb.PUSH_KIND_PARAMETERS:
            base = number - 1 - age
            assert sent.header.base_revision == base, f"{key} is in {number}, its age is {age}"
            assert 0 <= age <= self._oldest, f"{key} is too old: {age}"
            value = self.lines[key[2]].published[base]
            assert sent.anchor == crc32c(value), f"{key} is from another revision {base}"
        self.committed[key] = number
        return sent

    def _file(self, fragment: int, number: int) -> tuple[dict[str, Any], Float32, Float32]:
        """(what was saved beside them, parameters, momentum) of a revision's file."""
        (path,) = self._folders[fragment].glob(f"r{number:08d}*.safetensors")
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])

        def tensor(name: str) -> Float32:
            begin, end = header[name]["data_offsets"]
            return np.frombuffer(data[start + begin : start + end], "<f4")

        saved = json.loads(header["__metadata__"]["saved"])
        return saved, tensor("parameters"), tensor("momentum")
