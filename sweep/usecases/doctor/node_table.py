"""Judges every node by its answer: what each lacks, what all of them lack, and which to leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweep.usecases.doctor.checks import CheckStatus, Finding, not_checked, ok, problem, warning
from sweep.usecases.doctor.every_node import NodeAnswer, Survey
from sweep.usecases.doctor.node_reports import LARGEST_SKEW_S, LEAST_OPEN_FILES, Expected

EXCLUDE = "exclude"
"""Name of the finding whose mend is the setting that leaves the sick nodes out."""
Lack = tuple[CheckStatus, str]
_PROBLEM, _WARNING = CheckStatus.PROBLEM, CheckStatus.WARNING


def node_table(survey: Survey, expected: Expected, *, excluded: Iterable[str] = (), timeout_s: float) -> list[Finding]:
    """One finding for all sound nodes, for what all nodes lack, for each node that lacks something, and to leave out.

    Args:
        survey: The nodes' answers.
        expected: What each should report.
        excluded: Nodes that the settings leave out already.
        timeout_s: How long doctor waited.
    """
    lacks = {node: _lacks(answer, expected, timeout_s) for node, answer in survey.answers.items()}
    lacks |= {node: [(_PROBLEM, why)] for node, why in survey.failed.items()}
    pairs = [*_pairs(survey.answers, "unresolved", "resolve"), *_pairs(survey.answers, "unreached", "connect to")]
    for node, lack in [*pairs, *_unlike(survey.answers)]:
        lacks[node].append(lack)
    common = _common(lacks)
    own = {node: [lack for lack in found if lack not in common] for node, found in sorted(lacks.items())}
    sound = ", ".join(node for node, found in own.items() if not found)
    findings = [_finding("every node", [lack], "All nodes lack it: mend the site or its settings.") for lack in common]
    if sound:
        findings.append(ok("nodes", f"nothing {'more ' if common else ''}is wrong with {sound}"))
    findings += [_finding(node, found, "") for node, found in own.items() if found]
    findings += [not_checked(node, why) for node, why in sorted(survey.unchecked.items())]
    sick = [node for node, found in own.items() if any(status is _PROBLEM for status, _ in found)]
    if sick:
        fact = f"{', '.join(sick)} {'has' if len(sick) == 1 else 'have'} a problem"
        named = ",".join(dict.fromkeys([*excluded, *sick]))
        findings.append(warning(EXCLUDE, fact, f"\"cluster.slurm.exclude='{named}'\""))
    return findings


def _finding(name: str, lacks: Sequence[Lack], mend: str) -> Finding:
    make = problem if any(status is _PROBLEM for status, _ in lacks) else warning
    return make(name, "; ".join(text for _, text in lacks), mend)


def _common(lacks: Mapping[str, Sequence[Lack]]) -> list[Lack]:
    """The lacks that every node has, where there are several nodes."""
    counts = Counter(lack for found in lacks.values() for lack in dict.fromkeys(found))
    return [lack for lack, count in counts.items() if count == len(lacks) > 1]


def _lacks(answer: NodeAnswer, expected: Expected, timeout_s: float) -> list[Lack]:
    report = answer.report
    found: list[Lack] = []
    seen = report.get("token", report.get("token_of_shell"))
    if seen is not None and seen != expected.token:
        found.append((_PROBLEM, f"it does not see what is written here into the run directory ({str(seen)[:100]})"))
    if answer.failure is not None:
        return [*found, (_PROBLEM, answer.failure.reason)]
    if not report.get("is_whole"):
        return [*found, *_silence(answer, timeout_s), *(_facts(report, expected) if "host" in report else [])]
    return [*found, *_facts(report, expected), *_gpu_facts(report, expected)]


def _silence(answer: NodeAnswer, timeout_s: float) -> list[Lack]:
    words = f": {'; '.join(answer.messages[-3:])[-300:]}" if answer.messages else ""
    if answer.is_over:
        return [(_PROBLEM, f"its check ended without a report{words}")]
    if "torch" in answer.report or "torch_error" in answer.report:
        return [(_PROBLEM, f"NVML did not answer within {timeout_s:g} s: the driver may hang{words}")]
    if "host" in answer.report:
        return [(_PROBLEM, f"importing torch did not end within {timeout_s:g} s{words}")]
    return [(_PROBLEM, f"its check did not come back within {timeout_s:g} s{words}")]


def _facts(report: Mapping[str, Any], expected: Expected) -> list[Lack]:
    """The lacks of a node by its own report, apart from its GPUs."""
    found: list[Lack] = []
    if report.get("file_system"):
        found.append((_PROBLEM, f"run directory: {report['file_system']}"))
    python = str(report.get("python", expected.python))
    if python.rpartition(".")[0] != expected.python.rpartition(".")[0]:
        found.append((_WARNING, f"Python {python}; here {expected.python}"))
    if report.get("torch_error"):
        found.append((_PROBLEM if expected.needs_torch else _WARNING, f"torch: {report['torch_error']}"))
    if report.get("port_error"):
        found.append((_PROBLEM, str(report["port_error"])))
    open_files, most = report.get("open_files"), report.get("open_files_hard")
    if open_files is not None and most is not None and most <= LEAST_OPEN_FILES:
        found.append((_WARNING, f"no more than {most} open files are allowed"))
    if report.get("memlock_bytes") is not None and expected.uses_gpus:
        found.append((_WARNING, "locked memory is limited, which keeps NCCL from InfiniBand"))
    given = report.get("slurm_gpus")
    if expected.slurm_gives_gpus and given is not None and given < expected.gpus_per_node:
        found.append((_PROBLEM, f"Slurm gives {given} GPUs; {expected.gpus_per_node} were asked for"))
    return [*found, *_clock(report, expected)]


def _clock(report: Mapping[str, Any], expected: Expected) -> list[Lack]:
    ahead, ours = report.get("ahead_of_files_s"), expected.ahead_of_files_s
    offsets = {"the other nodes'": report.get("clock_offset_s")}
    offsets["this machine's"] = None if ahead is None or ours is None else ahead - ours
    return [
        (_WARNING, f"its clock is {abs(offset):.0f} s off {whose}")
        for whose, offset in offsets.items()
        if offset is not None and abs(offset) > LARGEST_SKEW_S
    ]


def _gpu_facts(report: Mapping[str, Any], expected: Expected) -> list[Lack]:
    """The lacks of a node's GPUs, by torch and NVML."""
    if not expected.uses_gpus:
        return []
    devices, given = report.get("devices"), report.get("slurm_gpus") or expected.gpus_per_node
    found: list[Lack] = []
    if devices is not None and len(devices) != given:
        found.append((_PROBLEM, f"torch sees {len(devices)} GPUs; Slurm says {given}"))
    if "gpus" not in report:
        return [*found, (_WARNING, f"NVML says nothing: {report.get('nvml_error')}")]
    for index, gpu in enumerate(report["gpus"]):
        found += [(status, f"GPU {index}: {text}") for status, text in _of_gpu(gpu)]
    return found


_FLAGS = (
    ("remap_failed", True, _PROBLEM, "a row of its memory could not be remapped"),
    ("remap_pending", True, _PROBLEM, "a remap of its memory waits for a reset"),
    ("is_slowed", True, _PROBLEM, "the hardware slows it down (heat or power)"),
    ("persistence", False, _WARNING, "persistence mode is off"),
)
_LESS_THAN = (
    ("pcie_width", "pcie_width_max", "PCIe x{} of x{}"),
    ("pcie_speed", "pcie_speed_max", "PCIe generation {} of {}"),
    ("clock_mhz", "clock_default_mhz", "its clock is capped at {} of {} MHz"),
    ("power_limit_w", "power_default_w", "its power is capped at {} of {} W"),
)


def _of_gpu(gpu: Mapping[str, Any]) -> list[Lack]:
    found = [(status, text) for name, bad, status, text in _FLAGS if gpu.get(name) is bad]
    for name, limit, text in _LESS_THAN:
        value, most = gpu.get(name), gpu.get(limit)
        # The link of an idle GPU may be slow; in performance state 0 it is not idle.
        is_idle = name == "pcie_speed" and gpu.get("performance_state") != 0
        if value is not None and most is not None and value < most and not is_idle:
            found.append((_PROBLEM, text.format(value, most)))
    if gpu.get("nvlinks_up") and gpu.get("nvlinks_down"):
        found.append((_PROBLEM, f"{gpu['nvlinks_down']} NVLinks are down"))
    return found


def _pairs(answers: Mapping[str, NodeAnswer], key: str, deed: str) -> list[tuple[str, Lack]]:
    """Nodes that others do not reach, or that do not reach others: of each failed pair the one with more of them.

    A node that never answered is no neighbour: what it lacks is messages elsewhere.
    """
    met = {node: answer.report[key] for node, answer in answers.items() if key in answer.report}
    pairs = {(one, other): str(why) for one, failed in met.items() for other, why in failed.items() if other in met}
    if pairs and len(pairs) == len(met) * (len(met) - 1):
        return [(node, (_PROBLEM, f"no node can {deed} another ({min(pairs.values())})")) for node in met]
    found = []
    while pairs:
        involved = Counter(node for pair in pairs for node in pair)
        reached_less = Counter(other for _, other in pairs)
        worst = max(sorted(involved), key=lambda node: (involved[node], reached_less[node]))
        to, by = [b for a, b in pairs if a == worst], [a for a, b in pairs if b == worst]
        why = next(why for pair, why in pairs.items() if worst in pair)
        parts = [f"{_few(by)} cannot {deed} it"] if by else []
        parts += [f"it cannot {deed} {_few(to)}"] if to else []
        found.append((worst, (_PROBLEM, f"{', '.join(parts)} ({why})")))
        pairs = {pair: why for pair, why in pairs.items() if worst not in pair}
    return found


def _few(nodes: Sequence[str]) -> str:
    return ", ".join(sorted(nodes)[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def _unlike(answers: Mapping[str, NodeAnswer]) -> list[tuple[str, Lack]]:
    """Nodes whose torch is another than most nodes', and GPUs with fewer NVLinks than others of their name."""
    versions = {node: answer.report["torch"] for node, answer in answers.items() if answer.report.get("torch")}
    found: list[tuple[str, Lack]] = []
    for most, _ in Counter(versions.values()).most_common(1):
        found += [
            (node, (_PROBLEM, f"torch {own}; most nodes have {most}")) for node, own in versions.items() if own != most
        ]
    links: dict[object, int] = {}
    gpus = [(node, i, gpu) for node, one in answers.items() for i, gpu in enumerate(one.report.get("gpus", ()))]
    for _, _, gpu in gpus:
        links[gpu.get("name")] = max(links.get(gpu.get("name"), 0), gpu.get("nvlinks_up") or 0)
    for node, index, gpu in gpus:
        up, most_up = gpu.get("nvlinks_up") or 0, links[gpu.get("name")]
        if up < most_up and not (up and gpu.get("nvlinks_down")):
            found.append((node, (_PROBLEM, f"GPU {index}: {up} NVLinks are up; others of its kind have {most_up}")))
    return found
