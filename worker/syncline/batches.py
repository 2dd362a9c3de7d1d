"""Batches of the user's own loader: whose they are, their tokens, and what comes of them."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar

import torch
import torch.distributed as dist
from structlog.typing import FilteringBoundLogger
from torch import Tensor
from torch.utils.data.distributed import DistributedSampler

from syncline.tally import Tally
from syncline_proto.errors import ConfigError

Batch = TypeVar("Batch")

UNTAKEN_MAX = 10_000
"""Batches, without a step, that no loop gathers gradients over."""

OVER_BUDGET_MAX = 100
"""Batches, without a step, where they hold more than the token budget."""


def dealt(
    batches: Iterable[Batch], *, replica: int, replicas: int, rank: int, ranks: int
) -> Iterator[Batch]:
    """Yield one rank's share of ``batches``, which all ranks of all replicas see in one order.

    Batch i is for replica i mod ``replicas``; of those, the ranks of the replica take turns. A
    batch comes once the last rank's of the same turn is there: every rank gets equally many.
    """
    own: list[Batch] = []
    for index, batch in enumerate(batches):
        place, whose = divmod(index, replicas)
        if whose != replica:
            continue
        if place % ranks == rank:
            own.append(batch)
        if place % ranks == ranks - 1:
            yield own.pop()


def ranks_among(loader: Iterable[Any]) -> tuple[int, int]:
    """(this rank, ranks) to deal among: (0, 1) where somebody has dealt among the ranks already.

    That is a ``DistributedSampler``, or Accelerate in a loader that it has prepared.
    """
    together = dist.is_available() and dist.is_initialized()
    has_dealt = isinstance(getattr(loader, "sampler", None), DistributedSampler) or any(
        kind.__module__ == "accelerate.data_loader" for kind in type(loader).__mro__
    )
    if has_dealt or not together:
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


class Counting:
    """Counts the tokens of batches, and sees that there are any."""

    def __init__(self, tokens_of: Callable[[Any], SupportsIndex] | None) -> None:
        self._tokens_of = tokens_of or tokens_in
        self._nothing = (
            ("tokens_of counted 0 tokens in every batch", "let it count a batch's tokens")
            if tokens_of
            else (
                "no batch has had input_ids or an integer tensor, so no token was counted",
                "give Replica a tokens_of= that counts a batch",
            )
        )
        self._said = False

    def __call__(self, batch: Any) -> SupportsIndex:
        return self._tokens_of(batch)

    def see(self, tally: Tally, budget: int | None, log: FilteringBoundLogger) -> None:
        """Say once that steps were made and no token was counted, in whatever way.

        Raises:
            ConfigError: there is a token budget, which would never be reached.
        """
        if self._said or not tally.inner_step or tally.tokens:
            return
        self._said = True
        why, so = self._nothing[0], f"{self._nothing[1]}, or call count_tokens"
        if budget is not None:
            raise never_reached(why, so)
        log.warning("data.uncounted", why=why, so=so)


class Untaken:
    """Counts batches that no optimizer step has followed; refuses a loop where none will."""

    def __init__(self) -> None:
        self._step = self._batches = self._tokens = 0

    def see(self, tally: Tally, tokens: int, budget: int | None) -> None:
        """A batch was counted: it holds so many tokens.

        Raises:
            ConfigError: there were far too many since the last step.
        """
        if tally.inner_step != self._step:
            self._step, self._batches, self._tokens = tally.inner_step, 0, 0
        self._batches += 1
        self._tokens += tokens
        spent = budget is not None and self._tokens > budget and self._batches > OVER_BUDGET_MAX
        if not spent and self._batches <= UNTAKEN_MAX:
            return
        why, so = f"{self._batches} batches were counted without a step{WHOSE}", STEP_IT
        raise never_reached(why, so) if spent else ConfigError(f"Nothing is trained: {why}; {so}.")

    def tell(self, tally: Tally, log: FilteringBoundLogger) -> None:
        """At the end: say if no step has ever come of what was counted."""
        if self._batches and not tally.inner_step:
            why = f"batches were counted ({self._batches}), and there was no step{WHOSE}"
            log.warning("data.untrained", why=why, so=STEP_IT)


WHOSE, STEP_IT = " of the optimizer that Replica has", "give it the one that the loop steps"


def check_counted(tally: Tally, unpushed: int, budget: int | None) -> None:
    """Look, at a boundary, at a loop that may neither use ``shard`` nor count tokens itself.

    One step alone says nothing yet: whoever counts after it comes late by one.

    Raises:
        ConfigError: no token was counted, and there is a token budget.
    """
    steps = tally.inner_step
    if budget is not None and steps > 1 and not (tally.tokens or unpushed):
        why = f"no token was counted in {steps} steps"
        raise never_reached(why, "iterate over replica.shard(loader) or call replica.count_tokens")


def never_reached(why: str, so: str) -> ConfigError:
    return ConfigError(f"The token budget would never be reached: {why}; {so}.")


def whole_number(tokens: SupportsIndex) -> int:
    """Return a number of tokens that somebody gave, as an int of Python's.

    Raises:
        ConfigError: it is no whole number, or negative.
    """
    try:
        number = operator.index(tokens)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(
            f"A batch's tokens must be a whole number, 0 or more, not {reprlib.repr(tokens)}: "
            "see what is given to count_tokens, or by tokens_of."
        )
    return number


def tokens_in(batch: Any) -> int:
    """Count a batch's tokens: the elements of ``input_ids``, else of the first integer tensor.

    Returns 0 for a batch that has neither.
    """
    if isinstance(batch, Mapping) and isinstance(batch.get("input_ids"), Tensor):
        return batch["input_ids"].numel()
    integers = (t for t in _tensors(batch) if _is_integer(t))
    return next((tensor.numel() for tensor in integers), 0)


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for value in batch:
            yield from _tensors(value)


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
