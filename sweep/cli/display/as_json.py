"""Makes the object that ``plan --json`` and ``status --json`` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sweep.cli.display.summary import rejected_by_rule
from sweep.core.cells.parallelism import DEGREES
from sweep.core.records.sweep_file import SweepFile
from sweep.usecases.status import RepeatStatus


def as_json(
    content: SweepFile,
    statuses: Sequence[RepeatStatus],
    totals: Mapping[str, object],
    *,
    walltime_min: int | None = None,
) -> dict[str, object]:
    """The object, as plain values."""
    counts = Counter(status.state for status in statuses)
    return {
        "grid": content.grid,
        "cluster": content.cluster,
        "scale": content.scale,
        "cells": [_cell_json(status, walltime_min) for status in statuses],
        "rejections": [
            {"axes": dict(item.axes), "rule": item.rule, "reason": item.reason} for item in content.rejections
        ],
        "totals": {
            "cells": len({status.action.cell_id for status in statuses}),
            "repeats": len(statuses),
            "rejections": len(content.rejections),
            "rejected_by_rule": rejected_by_rule(content.rejections),
            **{state: counts[state] for state in sorted(counts)},
            **totals,
        },
    }


def _cell_json(status: RepeatStatus, walltime_min: int | None) -> dict[str, object]:
    action, attempt, progress = status.action, status.attempt, status.progress
    cell = status.cell
    return {
        "cell": action.cell_id,
        "repeat": action.repeat,
        "axes": dict(status.axes),
        "gpus": cell.gpus,
        **{name: getattr(cell.parallelism, name) for name in DEGREES},
        "global_batch": cell.global_batch,
        "micro_batch": cell.micro_batch,
        "state": status.state,
        "action": action.kind.value,
        "reason": action.reason,
        "waits_for": status.waits_for or None,
        "recorded": status.is_recorded,
        "attempt": action.attempt,
        "outcome": None if action.outcome is None else action.outcome.value,
        "job": None if attempt is None else attempt.job_id,
        "step": None if progress is None else progress.step,
        "steps": cell.trainer.steps,
        "tokens_per_s": None if progress is None else progress.tokens_per_s,
        "seconds_left": status.seconds_left,
        "gpu_hours_at_most": None if walltime_min is None else cell.gpus * walltime_min / 60,
    }
