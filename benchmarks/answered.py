"""What replicas were answered to their pushes, as each notes it itself.

A line goes to the replica's file as soon as an answer is there, in one write, so that a kill keeps
it: INCARNATION FRAGMENT SEQ INNER_STEPS VERDICT. A kill between the answer and its note leaves a
push without one. Of Syncline nothing is asked here but the answer on the wire.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from accounts import Push
from syncline.line import Sending
from syncline.link import Link
from syncline.payload import Payload
from syncline_proto.v1 import sync_pb2 as pb


def note_answers(path: Path) -> None:
    """From now on note what this process is answered; other lives may have written there."""
    plain, file = Link.push, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def push(
        self: Link, header: pb.PushHeader, payload: Payload, sending: Sending
    ) -> pb.PushResponse:
        answer = plain(self, header, payload, sending)
        if header.kind == pb.PUSH_KIND_PSEUDO_GRADIENT:
            os.write(file, line_of(header, answer).encode())
        return answer

    Link.push = push


def line_of(header: pb.PushHeader, answer: pb.PushResponse) -> str:
    """The note of an answer; of a push that came again it says how that was judged before."""
    again = answer.verdict == pb.VERDICT_DUPLICATE
    verdict = answer.judged if again else answer.verdict
    numbers = header.incarnation, header.fragment, header.seq, header.inner_steps, verdict
    return " ".join(map(str, numbers)) + "\n"


def answered(paths: Iterable[Path], fragments: int, step_tokens: int) -> list[dict[Push, int]]:
    """By fragment: the tokens of each push, 0 where it is not accepted, by files of their names."""
    found: list[dict[Push, int]] = [{} for _ in range(fragments)]
    for path in paths:
        *whole, _ = path.read_text().split("\n")  # what a kill may have cut short is no note
        for incarnation, fragment, seq, steps, verdict in (map(int, one.split()) for one in whole):
            push, book = ((path.stem, incarnation), seq), found[fragment]
            tokens = steps * step_tokens if verdict == pb.VERDICT_ACCEPTED else 0
            book[push] = max(tokens, book.get(push, 0))
    return found
