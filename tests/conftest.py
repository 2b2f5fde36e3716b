"""Settings of every test."""

import os

from hypothesis import HealthCheck, settings

# How long an example takes depends on the machine and is no property of the code. CI tries the same examples each time.
settings.register_profile(
    "onsphere", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("onsphere")
