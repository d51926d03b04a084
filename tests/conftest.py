"""Properties are checked on the same examples in every run, and not against the clock.

A random search belongs to whoever looks for bugs: ``pytest --hypothesis-profile=search``.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "same", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
