"""What holds for the whole suite: with SYNCLINE_NO_SKIPS set, no test may be skipped; how long
Hypothesis takes for an example fails nothing, since a loaded machine takes long; PyTorch's threads,
of which each test would start one for each core, do not wait for one another; a long test has more
time than others; and who configures logs, as commands do, does so for one test.
"""

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["syncline_testing.skips"]

settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")

LONG_S = 400
"""What takes a minute where nothing else runs takes several on a slow machine that is busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S))


@pytest.fixture(autouse=True)
def logs_go_where_they_went() -> Iterator[None]:
    """A command that was run in this process leaves none to a file that is closed by then."""
    was = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if was is not None:
        structlog.configure(**was)
