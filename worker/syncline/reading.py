"""How a loop reads its batches through its replica: dealt, leased, or counted as they come.

What is counted becomes part of the next push; when that is, ``session`` knows.
"""

from __future__ import annotations

import inspect
import operator
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from difflib import get_close_matches
from typing import Any, Literal, Protocol, SupportsIndex

from pydantic import ValidationError
from torch.utils.data import DataLoader, Dataset

from syncline.alone import Alone
from syncline.batches import Batch, Counting, Untaken, dealt, ranks_among, whole_number
from syncline.data.order import SequenceStream
from syncline.facts import Facts
from syncline.faults import plainly
from syncline.leased import Drawn, Order, Unleased
from syncline.voice import own_rank, voice
from syncline.wish import Wish
from syncline_proto.errors import ConfigError
from syncline_proto.leased import Dataset as Named
from syncline_proto.words import sentence

OURS = frozenset({"dataset", "batch_sampler", "sampler", "shuffle", "drop_last", "in_order"})
"""Arguments of a DataLoader that say what the leases decide.

In order it must be: batches are counted as read in the order in which they were drawn.
"""


class MapStyle(Protocol):
    """A dataset whose examples have numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Reading(Facts):
    """What a loop reads, and how much that is."""

    def __init__(
        self,
        wish: Wish | None,
        alone: Alone,
        tokens_of: Callable[[Any], SupportsIndex] | None,
    ) -> None:
        """``wish`` is None where it trains alone; ``tokens_of`` counts a batch's tokens."""
        super().__init__(wish, alone)
        self._stage: Literal["new", "live", "closed"] = "new"
        self._tokens_in = Counting(tokens_of)
        self._untaken = Untaken()
        self._sampler: Sampler | None = None
        self._has_said = False

    def shard(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield this rank's batches of a loader that gives every replica and rank the same order.

        Batch i is for ordinal i mod ``settings.replicas``, and the replica's ranks take turns.
        Where the loader has a ``DistributedSampler``, that has dealt among the ranks already.
        Counts their tokens; ends with the loader, or when the replica is done. Nobody reads what a
        replica leaves unread that goes for good; of a dataset with numbers, see ``leased``.
        """
        self._check_live()
        replicas = self.settings.replicas if self.active else 1
        rank, ranks = ranks_among(loader)
        alive = self._registration.run.replicas_alive if self._registration else 0
        if self.active and not self._has_said:
            self._has_said = True
            why = "batches are dealt, and nobody reads what a replica leaves unread for good"
            so = "a dataset with numbers is better read by replica.leased(dataset, batch_size)"
            voice(own_rank()).info("data.dealt", why=why, so=so)
        if alive > replicas:
            why = f"batches are dealt among {replicas} replicas, and {alive} are alive"
            so = "some train on the same ones; create the run with more expected_replicas"
            voice(own_rank()).warning("data.shared", why=why, so=so)
        own = dealt(
            loader, replica=self.ordinal % replicas, replicas=replicas, rank=rank, ranks=ranks
        )
        while (yield from self._read(own)):
            pass  # another life reads on

    def leased(
        self,
        dataset: MapStyle,
        batch_size: int,
        *,
        seed: int = 0,
        content: str = "",
        **loader: Any,
    ) -> Iterator[Any]:
        """Yield this rank's batches of a dataset whose examples have numbers, epoch after epoch.

        Each epoch walks the dataset in another order, and the control plane leases each example to
        one replica: what a replica has not brought in when it leaves or is lost, others read.
        Counts tokens; ends when the replica is done. Without a run, all of it is this replica's.
        Called again it goes on with what was not read, and what it gave before ends.

        Args:
            dataset: the same for all replicas of the run, or they are refused (DataMismatch) where
                its length, ``seed`` or ``content`` tells.
            batch_size: of this rank.
            seed: of the orders; the same for all.
            content: names what the examples are, if that is known: a version, or a hash.
            loader: goes to PyTorch's DataLoader: num_workers, collate_fn, pin_memory and such.

        Raises:
            ConfigError: dataset, batch size or another argument is none, or it reads another one.
            DataError: the dataset has fewer examples than the run has replicas.
            DataMismatch: the run's data is another.
        """
        self._check_live()
        batch_size = _batch_size(batch_size)
        _check_map_style(dataset)
        _check_loader(loader)
        if self.done:
            return iter(())
        rank, ranks = ranks_among([])
        whole = batch_size * ranks
        try:
            named = Named(sequences=len(dataset), seed=seed, content=content)
        except ValidationError as error:
            raise ConfigError(f"leased: {sentence(error)}") from None

        def batches() -> Generator[Any, None, bool]:
            order = self.order(named, whole, self.settings.sync_every * whole)
            if self._sampler is not None:
                self._sampler.end()
            self._sampler = sampler = Sampler(order, batch_size, rank, ranks)
            drawn: Any = DataLoader(_Numbered(dataset), batch_sampler=sampler, **loader)
            return self._read(drawn, sampler.taken)

        return _lives(batches(), batches)

    def order(self, dataset: Named, batch: int, round_: int) -> Order:
        """For trainers: the numbers that this replica reads of a dataset; the same on all ranks.

        ``batch`` of them are taken at a time by all ranks together, and ``round_`` between two
        pushes. Without a run they are all of each epoch.

        Raises:
            ConfigError, DataError: as ``leased`` does.
        """
        self._check_live()
        if self._life is not None:
            return self._life.lease(dataset, batch, round_)
        return Unleased(SequenceStream(dataset.sequences, dataset.seed, 0, 1))

    def count_batch(self, batch: Any) -> None:
        """Count the tokens of a batch that ``shard`` did not give, as it would."""
        self._tokens_in.see(self._session.tally, self.settings.token_budget, voice(own_rank()))
        self.count_tokens(self._tokens_in(batch))

    @plainly
    def count_tokens(self, tokens: SupportsIndex) -> None:
        """Say how many tokens, 0 or more, this rank trains on before the next optimizer step."""
        self._check_live()
        number = whole_number(tokens)
        if not self.done:
            self._untaken.see(self._session.tally, number, self.settings.token_budget)
        self._session.count(number)

    def _read(
        self, batches: Iterable[Batch], taken: Callable[[], None] = lambda: None
    ) -> Generator[Batch, None, bool]:
        """Count batches as the loop takes them, until the replica is done.

        Or until another life of it has begun, which it returns.
        """
        for batch in batches:
            if self.done:
                return False
            taken()
            self.count_batch(batch)
            yield batch
            if self._returns():
                return True
            if self.last_round:
                self._session.finish()
        return False

    def _returns(self) -> bool:
        """Between two steps: whether a lease that was lost is another life's now."""
        return False

    def _check_live(self) -> None:
        if self._stage == "closed":
            raise ConfigError(
                "The replica is closed, and counts and merges no more: stay inside its `with` "
                "block, or start it again."
            )
        if self.active and self._stage == "new":
            raise ConfigError(
                "The replica has not joined its run: start it, or use it in a `with` block."
            )


def _lives(
    first: Generator[Batch, None, bool], anew: Callable[[], Generator[Batch, None, bool]]
) -> Iterator[Batch]:
    """What the first life reads, and each that follows."""
    while (yield from first):
        first = anew()


class Sampler:
    """Numbers for a DataLoader, which may take them long before the loop gets their batch."""

    def __init__(self, order: Order, batch: int, rank: int, ranks: int) -> None:
        self._order, self._batch, self._rank, self._ranks = order, batch, rank, ranks
        self._ahead: deque[Drawn] = deque()
        """Batches that are being loaded, in order."""
        self._is_over = False

    def __iter__(self) -> Iterator[list[int]]:
        while not self._is_over:
            drawn = self._order.draw(self._batch * self._ranks)
            self._ahead.append(drawn)
            begin = self._rank * self._batch
            yield drawn.sequences[begin : begin + self._batch].tolist()

    def taken(self) -> None:
        """The loop has the next batch: it counts as read.

        Raises:
            ConfigError: another has taken over.
        """
        if self._is_over:
            raise ConfigError("leased was called again: go on with what it gave last.")
        self._order.read(self._ahead.popleft())

    def end(self) -> None:
        """Another takes over what was drawn, and is not taken."""
        self._is_over = True


def _batch_size(given: SupportsIndex) -> int:
    """The batch size as an int.

    Raises:
        ConfigError: it is none.
    """
    try:
        number = operator.index(given)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"batch_size is {given!r}; it must be a whole number, 1 or more.")
    return number


def _check_loader(loader: dict[str, Any]) -> None:
    """Refuse arguments that a DataLoader of leased examples cannot have.

    Raises:
        ConfigError: no DataLoader takes one of these, or it would say what ``leased`` says.
    """
    takes = inspect.signature(DataLoader.__init__).parameters
    for name in loader:
        if name in OURS:
            raise ConfigError(
                f"leased takes no {name}: which examples are read next, and by whom, is what is "
                "leased; seed chooses another order."
            )
        if name not in takes:
            likely = get_close_matches(name, takes, 1)
            hint = f"; is {likely[0]} meant?" if likely else "."
            raise ConfigError(f"leased: PyTorch's DataLoader takes no {name}{hint}")


def _check_map_style(dataset: Any) -> None:
    """Refuse what is no map-style dataset.

    Raises:
        ConfigError: its examples have no numbers, or it has none.
    """
    if isinstance(dataset, DataLoader):
        raise ConfigError("leased wants the dataset, not a DataLoader; it makes one of its own.")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ConfigError(
            f"leased wants a dataset with len() and [number], and {type(dataset).__name__} is "
            "none: read a stream with replica.shard."
        )
    if not len(dataset):
        raise ConfigError("leased: the dataset is empty.")


class _Numbered(Dataset[Any]):
    """What a DataLoader takes for a map-style dataset."""

    def __init__(self, dataset: MapStyle) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]
