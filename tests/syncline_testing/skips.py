"""A pytest plugin: where everything is installed, a test that is skipped is a test that fails."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

NO_SKIPS = "SYNCLINE_NO_SKIPS"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get(NO_SKIPS):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{why}; {NO_SKIPS} is set"
    return report
