"""How property tests run everywhere: no deadline on shared machines, and the same examples for everyone."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "roundhouse", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("roundhouse")
