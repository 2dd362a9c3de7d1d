"""What holds for the whole suite: with SYNCLINE_NO_SKIPS set, no test may be skipped; how long
Hypothesis takes for an example fails nothing, since a loaded machine takes long; and PyTorch's
threads, of which each test would start one for each core, do not wait for one another.
"""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["syncline_testing.skips"]

settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")
