from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An empty folder for configuration of one's own."""
    for group in ("grid", "cluster", "model", "hardware", "trainer"):
        (tmp_path / group).mkdir()
    return tmp_path
