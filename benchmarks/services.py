"""Real services for the benchmarks that start some: what the tests start theirs with.

The tests' helpers belong to no package that is installed; so a clone finds them here.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from syncline_testing.cluster import Cluster

__all__ = ["Cluster"]
