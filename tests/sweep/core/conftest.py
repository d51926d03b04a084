from __future__ import annotations

import pytest

from sweep.core.rules import RULES


@pytest.fixture
def able_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the trainer cannot do yet is another matter than what a grid means."""
    rules = {name: rule for name, rule in RULES.items() if name != "trainer_cannot_yet"}
    monkeypatch.setattr("sweep.core.rules.RULES", rules)
