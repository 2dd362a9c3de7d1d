"""The synchronous phase: before each optimizer step the gradients become everybody's mean.

Its steps go through the sync service like any round (kind GRADIENT, fp32, weighted by tokens), so
no replica needs to know another. At the end all are equal, and each offers its parameters.

Ranks hold a mean of one epoch, or one of them is told that it is gone: a new epoch begins only
where a revision of rounds may be lost, and by then no mean gradient is there any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from syncline.anchors import Anchors
from syncline.core.agreement import Conclusion, Step
from syncline.exchange import Exchange
from syncline.push import Outcome, Push
from syncline_proto.ranges import Ranges, without
from syncline_proto.v1 import sync_pb2 as pb

Settled = Callable[[int, Future[Outcome]], tuple[Conclusion, Outcome]]


class WarmUp:
    """One replica's way through the synchronous phase."""

    def __init__(
        self,
        steps: int,
        phases: Sequence[int],
        anchors: Anchors,
        exchange: Exchange,
        settled: Settled,
    ) -> None:
        """``phases`` are the numbers of this one, by fragment; ``settled`` waits on all ranks."""
        self.step = 0
        """Gradient steps made, equal on all replicas of the phase."""
        self._steps, self._phases = steps, phases
        self._anchors, self._exchange, self._settled = anchors, exchange, settled

    @property
    def is_over(self) -> bool:
        return self.step >= self._steps

    def average(
        self, inner_step: int, tokens: int, data: Sequence[Ranges]
    ) -> tuple[int, list[Ranges]] | None:
        """Replace the gradients by the mean over all replicas.

        Args:
            inner_step: this replica's steps before this one.
            tokens: of this step, of the whole replica.
            data: sequences of leased data that the gradient of each fragment names.

        Returns:
            Tokens committed by everyone, this step included; and what of ``data`` is in the means
            now: nothing of a fragment whose step closed without us. None if the phase went on
            without us, and then the gradients mean nothing.
        """
        self.step += 1
        pushes = [self._push(f, inner_step, tokens, named) for f, named in enumerate(data)]
        futures = [self._exchange.begin(push) for push in pushes]
        ends = [self._settled(fragment, future) for fragment, future in enumerate(futures)]
        for push in pushes:
            self._anchors.scratch.give_back(push.payload.memory)
        if any(conclusion.step is not Step.MERGE for conclusion, _ in ends):
            return None
        committed = 0
        for fragment, (_, outcome) in enumerate(ends):
            assert outcome.pulled is not None
            self._anchors.write_gradients(fragment, outcome.pulled.whole())
            committed = outcome.pulled.header.committed_tokens
        taken = [without(d, outcome.lost) for d, (_, outcome) in zip(data, ends, strict=True)]
        return committed, taken

    @contextmanager
    def offered(self, inner_step: int) -> Iterator[list[Future[Outcome]]]:
        """Offer the parameters at the end of the phase: the first whole offer becomes revision 1.

        What is to come of each fragment's, in a ``with`` block that ends once all of it is there.
        """
        self._anchors.scratch.trim()  # no more gradients: with the first round their room goes
        pushes = [
            Push(
                fragment=fragment,
                kind=pb.PUSH_KIND_PARAMETERS,
                payload=self._anchors.parameters(fragment),
                base=0,
                phase=self._phases[fragment],
                first_step=inner_step,
                last_step=inner_step,
            )
            for fragment in range(len(self._anchors.shards))
        ]
        yield [self._exchange.begin(push) for push in pushes]
        for push in pushes:  # not after an exception: some may be on their way still
            self._anchors.scratch.give_back(push.payload.memory)

    def _push(self, fragment: int, inner_step: int, tokens: int, data: Ranges) -> Push:
        return Push(
            fragment=fragment,
            kind=pb.PUSH_KIND_GRADIENT,
            payload=self._anchors.gradients(fragment),
            gradient_step=self.step,
            phase=self._phases[fragment],
            tokens=tokens,
            first_step=inner_step,
            last_step=inner_step + 1,
            data=data,
        )
