"""Properties of the core are checked on fewer examples than Hypothesis takes by default, and not against the clock."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("core", max_examples=40, deadline=None)
settings.load_profile("core")
