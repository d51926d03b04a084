"""Shows the evidence for ``status CELL`` and ``status --nodes``: attempts and why they ended; blamed nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import waits_for
from sweep.core.attempts.blame import Blame, evidence_of, unexpired
from sweep.core.encoding.message import counted
from sweep.core.encoding.names import TIME_RANGE
from sweep.core.records.layout import attempt_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from sweep.core.attempts.history import AttemptState, History
    from sweep.core.records.sweep_file import SweepFile
    from sweep.ports import RunRecords
    from sweep.usecases.observe import Observation


def attempts_as_json(
    cell_id: str, content: SweepFile, history: History, run_dir: RunRecords, seen: Observation
) -> list[dict[str, object]]:
    """Every attempt at a cell, with the evidence for its outcome, the reason why it waits, or its progress."""
    found = []
    for repeat in range(1, content.repeats + 1):
        for attempt in history.of(cell_id, repeat).attempts:
            found.append({**_as_data(attempt, seen), "running": _running(attempt, run_dir)})
    return found


def _as_data(attempt: AttemptState, seen: Observation) -> dict[str, object]:
    report = seen.reports.get(attempt.job_id or "") if attempt.in_flight else None
    return {
        "repeat": attempt.key.repeat,
        "attempt": attempt.key.attempt,
        "directory": str(attempt_dir(attempt.key)),
        "submission": attempt.submission,
        "job": attempt.job_id,
        "reserved_at": attempt.reserved_at,
        "ended_at": attempt.ended_at,
        "state": "released" if attempt.released else "in flight" if attempt.in_flight else "ended",
        "outcome": None if attempt.outcome is None else attempt.outcome.value,
        "reason": attempt.reason,
        "gpu_seconds": attempt.gpu_seconds,
        "recorded": attempt.key not in seen.unrecorded,
        "waits_for": None if report is None else waits_for(report) or None,
        "evidence": dict(attempt.evidence),
    }


def _running(attempt: AttemptState, run_dir: RunRecords) -> dict[str, object] | None:
    """The last report of an attempt's launcher and trainer; None before its launcher began, and after its end."""
    launched = run_dir.attempt_file(attempt.key) if attempt.in_flight else None
    if launched is None:
        return None
    progress = run_dir.progress(attempt.key)
    return {
        "since": launched.started_at,
        "nodes": list(launched.hosts),
        "restart": launched.restart,
        "step": None if progress is None else progress.step,
        "steps": None if progress is None else progress.steps,
        "tokens_per_s": None if progress is None else progress.tokens_per_s,
    }


def print_attempts(
    console: Console, cell_id: str, content: SweepFile, history: History, run_dir: RunRecords, seen: Observation
) -> None:
    """Print every attempt at a cell: times, nodes, outcome, and the evidence in the order in which it decides."""
    from rich.markup import escape

    for attempt in attempts_as_json(cell_id, content, history, run_dir, seen):
        title = f"repeat {attempt['repeat']} attempt {attempt['attempt']}: {attempt['outcome'] or attempt['state']}"
        title += "" if attempt["recorded"] else " (not recorded yet)"
        console.print(f"[bold]{escape(title)}[/bold]", highlight=False)
        for name, text in _facts(attempt):
            if text:
                console.print(f"  {name:<18} {text}", highlight=False, markup=False, soft_wrap=True)


def _facts(attempt: Mapping[str, object]) -> list[tuple[str, str]]:
    evidence = attempt["evidence"]
    assert isinstance(evidence, dict), "written as a mapping"
    used = attempt["gpu_seconds"]
    facts = [
        ("why", str(attempt["reason"] or "")),
        ("job", f"{attempt['job'] or 'unknown'} of {attempt['submission']}"),
        ("reserved", _when(attempt["reserved_at"])),
        ("decided", _when(attempt["ended_at"])),
        ("used", "" if not isinstance(used, int | float) else f"{used / 3600:,.3f} GPU-hours"),
        ("folder", str(attempt["directory"])),
        ("waits for", str(attempt["waits_for"] or "")),
        *_running_facts(attempt["running"]),
    ]
    if not evidence:
        return facts
    result = "valid" if evidence.get("result") else evidence.get("result_problem") or "none"
    state = f"{evidence.get('state') or 'unknown'} {evidence.get('state_reason') or ''}".strip()
    return [
        *facts,
        ("result", str(result)),
        ("scheduler", state),
        ("nodes", ", ".join(evidence.get("nodes") or [])),
        ("exit code", "" if evidence.get("exit_code") is None else str(evidence["exit_code"])),
        ("blamed", ", ".join(evidence.get("blamed") or [])),
        *(("error file", _error(error)) for error in evidence.get("errors") or []),
    ]


def _running_facts(running: object) -> list[tuple[str, str]]:
    if not isinstance(running, dict):
        return []
    restart = f", restart {running['restart']}" if running["restart"] else ""
    speed = "" if running["tokens_per_s"] is None else f", {running['tokens_per_s']:,.0f} tokens/s"
    return [
        ("running", f"since {_when(running['since'])} on {', '.join(running['nodes'])}{restart}"),
        ("step", "" if running["step"] is None else f"{running['step']} of {running['steps']}{speed}"),
    ]


def _error(error: Mapping[str, object]) -> str:
    who = (
        f"node {error['node_rank']}" if error["rank"] is None else f"rank {error['rank']} on node {error['node_rank']}"
    )
    step = "" if error["step"] is None else f" in step {error['step']}"
    return f"{_when(error['time'])} {who}{step}: {error['error_class']}: {error['message']}"


def _when(value: object) -> str:
    if not isinstance(value, int | float) or not TIME_RANGE.holds(value):
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))


def print_nodes(
    console: Console, cluster: str, blames: Sequence[Blame], *, after: int, expiry_h: float, now: float
) -> None:
    """Print the nodes of one cluster that attempts of any of the user's runs blame."""
    from rich.markup import escape

    found = evidence_of(unexpired(blames, now=now, expiry_h=expiry_h))
    if not found:
        console.print(f"no node of {cluster} is blamed by any attempt of the last {expiry_h:g} hours.", markup=False)
        return
    for node, cells, reason in found:
        state = "[red]excluded[/red]" if cells >= after else "watched"
        reason_text = f"blamed by {counted(cells, 'cell')}; latest: {escape(reason)}"
        console.print(f"{escape(node)}: {state}, {reason_text}", highlight=False, soft_wrap=True)
    console.print(f"excluded: blamed by {after} or more different cells within {expiry_h:g} hours.", highlight=False)
