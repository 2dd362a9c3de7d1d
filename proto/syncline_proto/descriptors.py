"""File descriptors, as any process has them: all that it may have, and what tells of none left."""

from __future__ import annotations

import errno

ENDLESS = 1 << 20
"""As good as no limit."""

UNKNOWN = 512
"""So many there are for sure where the system does not say."""


def raise_limit() -> int:
    """Let this process have as many as it may give itself; return how many."""
    try:
        import resource
    except ImportError:  # no Unix
        return UNKNOWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # the hard one may be over what the system has (macOS)
        hard = soft
    return hard if hard != resource.RLIM_INFINITY else ENDLESS


def none_left(error: OSError) -> bool:
    """Whether it failed for want of one, in the process or on the machine."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
