"""Eager updates: how far ahead of the published value a replica trains on that does not wait.

With a whole round of delay what is published at a push holds everybody's pushes up to the one
before. Eager updates (arXiv 2502.12996) put the replica's own fresh pseudo-gradient D(t) in the
place of its share of what is still to come:

    u(t) = mean(t-1) + share * (D(t) - D(t-1))

and take the outer step with that. The service takes its step with the mean alone. Both are linear
with the same lr and mu, so what the one has more than the other is

    lr * share * ((1 + mu) D(t) + mu^2 D(t-1) + mu^3 D(t-2) + ...)

of which all but the first term is kept, as the echo of earlier pushes. One replica with lr 1 and
without momentum stands where uninterrupted training does. We differ from the paper in that replicas
keep no outer state of their own, so nothing drifts: the clip, and weights that are not equal, are
the service's alone, and an echo begins anew where a push did not count.

Pure arithmetic on flat fp32 vectors of equal length.
"""

from __future__ import annotations

import numpy as np

from syncline_proto.codec import Float32


def ahead(delta: Float32, echo: Float32, share: float, lr: float, mu: float) -> Float32:
    """What to take from the published value, with ``delta`` just pushed.

    ``share`` is the replica's weight in a round, of 1.
    """
    out = delta * np.float32(share * (1.0 + mu))
    out += echo
    out *= np.float32(lr)
    return out


def echo_after(delta: Float32, echo: Float32, share: float, mu: float) -> None:
    """Make ``echo`` that of the next push; in place."""
    echo *= np.float32(mu)
    echo += delta * np.float32(share * mu * mu)
