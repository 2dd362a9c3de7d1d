"""All positions of a run's data on one track: epoch after epoch, without an end.

Position p of epoch e is at e * N + p, where N is the number of sequences. So epochs that are done
are one range, however many they are: what ends with one meets what begins with the next.

Pure. On the track ranges are those of ``syncline_proto.ranges``, all in epoch 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from syncline_proto.ranges import POSITION_MAX, Range, Ranges, joined
from syncline_proto.stretches import Stretch, Stretches

LENGTH_MAX = 1 << 62
"""Of the track: a table keeps 64 bits."""

PIECES_MAX = 1 << 14
"""Parts of epochs that stretches of more than one may come to: else one of them could fill the
memory."""


@dataclass(frozen=True, slots=True)
class Track:
    """Of a dataset of so many sequences."""

    size: int

    def along(self, what: Iterable[Range | Stretch], last: int) -> Ranges:
        """Where that is on the track, as far as there is any, up to the ``last`` epoch."""
        end = min(last + 1, LENGTH_MAX // self.size)
        found: list[Range] = []
        for one in what:
            epoch, start, stop, epochs = Stretch(*one)
            until = min(epoch + epochs, end)
            if self._has_all(start, stop):
                found.append(Range(0, epoch * self.size, until * self.size))
            elif start < self.size:
                stop = min(stop, self.size)
                begins = range(epoch * self.size, until * self.size, self.size)
                found += (Range(0, begin + start, begin + stop) for begin in begins)
        return joined(found)

    def bound(self, what: Stretches) -> int:
        """The last epoch up to which those of several are in ``PIECES_MAX`` parts at most."""
        left = PIECES_MAX
        for epoch, start, stop, epochs in what:
            if epochs > 1 and not self._has_all(start, stop):
                if epochs > left:
                    return epoch + left - 1
                left -= epochs
        return POSITION_MAX

    def epoch(self, at: int) -> int:
        """Of what is at that place of the track."""
        return at // self.size

    def epochs(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """Ranges of the track, in order, as positions of their epochs."""
        for _, start, stop in ranges:
            while start < stop:
                epoch, position = divmod(start, self.size)
                length = min(stop - start, self.size - position)
                yield Range(epoch, position, position + length)
                start += length

    def pieces(self, range_: Range) -> int:
        """Of how many epochs a range of the track has something."""
        return self.epoch(range_.stop - 1) - self.epoch(range_.start) + 1

    def wholes(self, ranges: Ranges) -> Ranges:
        """Which epochs ranges of the track have wholly, as ranges of their numbers."""
        found = (Range(0, -(-start // self.size), self.epoch(stop)) for _, start, stop in ranges)
        return tuple(one for one in found if one.start < one.stop)

    def _has_all(self, start: int, stop: int) -> bool:
        return start == 0 and stop >= self.size


def reach(what: Iterable[Stretch], since: int, gap: int) -> int:
    """Up to which epoch one follows another, from ``since`` on, with ``gap`` between at most.

    That is the one behind the last of them.
    """
    for one in sorted(what):
        if one.epoch > since + gap:
            break
        since = max(since, one.until)
    return since
