"""A fragment as its files have it when a service starts, and what its values are sent from.

Reads, and lays out arrays for pulls; what becomes of them is the holding's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from syncline_proto.codec import CODEC_BY_NAME, Float32, UInt16, codec_of, encode
from syncline_proto.reports import RoundReport
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Saved
from syncline_sync.entries import new_parameters
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.published import Published
from syncline_sync.sources import Sent


@dataclass(frozen=True, slots=True)
class Stored:
    """A fragment as its files have it, and what was published.

    ``saved`` is None, and all is empty, before the first commit. ``spare`` is what the newest
    revision is sent from, where that is not the parameters themselves; or ``sent`` is, bf16 as
    bits, where that does not follow from the parameters. All of it is of the run's ``epoch``,
    whenever it was committed: what is still there of an earlier one has not gone back.
    """

    store: FragmentStore
    saved: Saved | None
    parameters: Float32
    momentum: Float32
    spare: Float32 | None
    sent: UInt16 | None
    revisions: tuple[Published, ...]
    gradients: tuple[Published, ...]
    epoch: int = 1
    committed_in: int = 1
    """The epoch that its files know of: the run's is this, or a later one."""
    offer: tuple[Saved, Float32] | None = None
    """Parameters that wait for those of other fragments, at the end of the synchronous phase."""
    reports: tuple[RoundReport, ...] = ()
    """Of rounds that the control plane may not have heard of."""

    @classmethod
    def read(cls, store: FragmentStore, epoch: int = 1) -> Stored:
        """Heavy: call it in the threads of the disk.

        Raises:
            StoreDamaged: a file is missing, short, or fails its checksum; the message names it.
        """
        loaded = store.load()
        if loaded is None:
            empty = np.zeros(0, np.float32)
            return cls(store, None, empty, empty, None, None, (), (), epoch)
        parameters, sent = loaded.parameters, loaded.published
        newest = _of(loaded.revisions[-1], epoch)
        if sent is None:
            source, spare = sent_of(parameters, codec_of_saved(newest), None)
        else:
            source, spare = sent_as_bits(sent), None
        revisions = [
            Published(_of(s, epoch), codec_of_saved(s), store.filed(s, codec_of_saved(s)))
            for s in loaded.revisions[:-1]
        ]
        revisions.append(Published(newest, codec_of_saved(newest), source))
        gradients = [
            Published(_of(s, epoch), pb.CODEC_FP32, store.filed(s, pb.CODEC_FP32, is_gradient=True))
            for s in loaded.gradients[:-1]
        ]
        if loaded.gradient is not None:
            source, _ = sent_of(loaded.gradient, pb.CODEC_FP32, None)
            newest_step = _of(loaded.gradients[-1], epoch)
            gradients.append(Published(newest_step, pb.CODEC_FP32, source))
        offer = loaded.offer and (_of(loaded.offer[0], epoch), loaded.offer[1])
        return cls(
            store=store,
            saved=_of(loaded.saved, epoch),
            parameters=parameters,
            momentum=loaded.momentum,
            spare=spare,
            sent=sent,
            revisions=tuple(revisions),
            gradients=tuple(gradients),
            epoch=epoch,
            committed_in=loaded.saved.epoch,
            offer=offer,
            reports=loaded.reports,
        )


def _of(saved: Saved, epoch: int) -> Saved:
    return replace(saved, epoch=epoch)


def sent_of(
    values: Float32, codec: pb.Codec.ValueType, spare: Float32 | None
) -> tuple[Sent, Float32 | None]:
    """What is sent of ``values``, and the array that holds it; fp32 is sent as it is.

    Heavy, but for fp32: call it in the pool.
    """
    if is_sent_as_it_is(codec):
        return Sent(encode(values, codec), codec), spare
    written = codec_of(codec)
    spare = new_parameters(values.size) if spare is None else spare  # which it may be one day
    into = spare.view(np.uint8)[: written.size(values.size)]
    written.encode_into(values, into)
    return Sent(into.data, codec), spare


def sent_as_bits(values: UInt16) -> Sent:
    return Sent(values.data.cast("B"), pb.CODEC_BF16)


def codec_of_saved(saved: Saved) -> pb.Codec.ValueType:
    """In which a revision is sent whole: what differences are added to is bf16."""
    return pb.CODEC_BF16 if saved.is_by_difference else CODEC_BY_NAME[saved.down]


def is_sent_as_it_is(codec: pb.Codec.ValueType) -> bool:
    return codec == pb.CODEC_FP32
