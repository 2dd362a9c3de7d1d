"""What holds for the whole suite: with SYNCLINE_NO_SKIPS set, no test may be skipped; and how long
Hypothesis takes for an example fails nothing, since a loaded machine takes long.
"""

from hypothesis import HealthCheck, settings

pytest_plugins = ["syncline_testing.skips"]

settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")
