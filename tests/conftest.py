"""What holds for the whole suite: with SYNCLINE_NO_SKIPS set, no test may be skipped."""

pytest_plugins = ["syncline_testing.skips"]
