"""Settings of all tests.

Hypothesis checks the same examples in every run, without a deadline. ``pytest --hypothesis-profile=search`` draws new
ones.

The time limit of a test ends a hang. It is generous, because a slow test takes many times as long on a busy machine.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "same", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("torchrun"):
            item.add_marker(pytest.mark.timeout(900))
