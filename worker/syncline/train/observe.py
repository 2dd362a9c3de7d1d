"""Looking at a run from outside: its merged parameters, whole, all of one revision.

An observer holds no lease, pushes nothing and delays nobody: it asks for revisions that are
published already.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import torch

from syncline.carrier import in_fp32
from syncline.control import ControlClient, all_alive
from syncline.link import Link
from syncline.scratch import Scratch
from syncline.stalled import Stalled
from syncline.standing import no_cut, standing
from syncline_proto.codec import Float32
from syncline_proto.errors import RevisionGone, Unreachable
from syncline_proto.layout import Layout
from syncline_proto.rest import RunView
from syncline_proto.v1 import sync_pb2 as pb

CUTS_MAX = 10
"""Attempts at one cut. A busy run may publish twice while we pull, and forget our revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Merged parameters of equal revision, fp32 on the CPU, under their canonical names.

    Of a run whose rounds do not wait, the newest of each fragment; ``revision`` is the smallest.
    """

    tensors: dict[str, torch.Tensor]
    revision: int
    committed_tokens: int
    frozen_sha256: str
    """Of what is not trained and not here: see the layout."""


def newest_cut(view: RunView, client: ControlClient, token: str | None) -> Cut:
    """Pull every fragment of a run at the newest revision that all of them have.

    Raises:
        RunConflict: nobody has set the run's parameters yet.
        Unreachable: a sync service does not answer, or no living one owns a fragment.
        RevisionGone: revisions were forgotten faster than they could be pulled, again and again.
    """
    timeouts = view.settings.timeouts
    with ExitStack() as stack:
        links = [
            stack.enter_context(closing(Link(service.address, timeouts, token)))
            for service in all_alive(client.sync_services(), client.url)
        ]
        for attempt in range(CUTS_MAX):
            layout, owners, revision = standing(view, links)
            try:
                return _pulled(view, layout, owners, revision)
            except RevisionGone as error:
                if attempt == CUTS_MAX - 1:
                    raise no_cut(error) from None
    raise AssertionError("a cut is returned or an error raised")


def assembled(layout: Layout, fragments: Iterable[Float32]) -> dict[str, torch.Tensor]:
    """Tensors from the flat vectors of all fragments, in order."""
    tensors = {spec.name: np.empty(spec.shape, np.float32) for spec in layout.tensors}
    for spec, values in zip(layout.fragments, fragments, strict=True):
        at = 0
        for box in spec.boxes:
            place = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
            part = values[at : at + box.numel].reshape(box.sizes)
            tensors[layout.tensors[box.tensor].name][place] = part
            at += box.numel
    return {name: torch.from_numpy(values) for name, values in tensors.items()}


def _pulled(view: RunView, layout: Layout, owners: dict[int, Link], revision: int) -> Cut:
    flat: list[Float32] = []
    committed: list[int] = []
    for number, spec in enumerate(layout.fragments):
        request = pb.PullRequest(run=view.name, fragment=number)
        if view.settings.asynchronous:
            request.newest = True
        else:
            request.revision = revision
        try:
            pulled = owners[number].pull(request, spec.numel, Scratch())
        except Stalled:
            raise Unreachable(
                f"The sync service at {owners[number].address} does not send what it has; "
                "try again."
            ) from None
        flat.append(in_fp32(pulled.whole()))
        committed.append(pulled.header.committed_tokens)
    return Cut(
        tensors=assembled(layout, flat),
        revision=revision,
        committed_tokens=committed[-1],
        frozen_sha256=layout.frozen_sha256,
    )
