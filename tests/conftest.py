"""Settings for all tests."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.apicurio", "tests.support.kafka"]

# Machines are noisy: no test fails for being slow. What hypothesis finds on one machine it finds on the next.
settings.register_profile("tablegate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tablegate")
