"""Reads the command line: a verb, a few flags, and Hydra overrides, which are left as they are."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.message import nearest

VERBS = {
    "run": "run every cell that is not measured yet, watch, and make the tables (the default)",
    "plan": "print every cell, what would be done about it and why; submit nothing",
    "status": "print the state of every cell of a run; change nothing",
    "logs": "print what the processes of a cell's latest attempt printed",
    "cancel": "end cells that are queued or running, and submit none of them again",
    "tables": "make the tables and figures of a run from its records",
    "doctor": "check the cluster and this installation, and say how to repair what is missing; train nothing",
}

EXAMPLES = """\
examples:
  python -m sweep plan +grid=weak_scaling cluster=slurm scale=paper
      print the cells of the paper's weak scaling on this cluster, and the most that they cost
  python -m sweep +grid=strong_scaling cluster=slurm nodes=[2,4,8] model=llama2_13b
      run it, with other nodes and another model than the grid's own; the same command again resumes
  python -m sweep status run_dir=runs/strong_scaling-slurm --json
      the state of every cell, for a script"""


class UsageError(Exception):
    """The command line cannot be understood."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """A command line.

    Attributes:
        verb: One of :data:`VERBS`.
        overrides: Hydra overrides, in the order in which they were typed.
        config_dir: A folder with the user's own configuration, searched first.
        as_json: True to print one JSON object on standard output.
        cells: Cell ids, or the first digits of them (logs, cancel, status).
        all_cells: True to cancel every cell.
        follow: True to print logs as they grow, until the attempt ends.
        raw: True to print logs with their control characters, which a terminal obeys.
        attempt: The attempt whose logs are printed; None: the latest.
        repeat: The repeat whose logs are printed.
        where: A condition over axes, such as ``nodes > 4``, that chooses cells to cancel; None: no condition.
        nodes: True for the status of the cluster's nodes instead of the cells.
        with_job: True if doctor may submit a small job.
        timeout_s: Seconds that doctor waits for that job.
        all_nodes: True if doctor's job is to check every node of the partition.
    """

    verb: str
    overrides: tuple[str, ...]
    config_dir: Path | None = None
    as_json: bool = False
    cells: tuple[str, ...] = ()
    all_cells: bool = False
    follow: bool = False
    raw: bool = False
    attempt: int | None = None
    repeat: int = 1
    where: str | None = None
    nodes: bool = False
    with_job: bool = True
    timeout_s: float = 120.0
    all_nodes: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str]) -> Arguments | None:
    """The command line, read; None where it asks for help.

    Raises:
        UsageError: If a flag is unknown, or an argument is neither an override nor a cell.
    """
    rest = list(argv)
    verb = rest.pop(0) if rest and rest[0] in VERBS else "run"
    if any(word in ("-h", "--help") for word in rest) or rest == ["help"]:
        return None
    names, overrides = _split(_parser(verb), rest, verb)
    cells = tuple(word for word in overrides if verb in ("logs", "cancel", "status") and _is_cell(word))
    overrides = [word for word in overrides if word not in cells]
    wrong = [word for word in overrides if "=" not in word and not word.startswith("~")]
    if wrong:
        raise UsageError(_not_an_override(wrong[0], verb, is_verb_given=argv[0] in VERBS))
    return Arguments(
        verb=verb,
        overrides=tuple(overrides),
        cells=cells,
        **vars(names),
    )


def _parser(verb: str) -> _Parser:
    parser = _Parser(prog=f"python -m sweep {verb}", add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", type=Path)
    if verb in ("plan", "status", "doctor", "cancel"):
        parser.add_argument("--json", action="store_true", dest="as_json")
    if verb == "cancel":
        parser.add_argument("--all", action="store_true", dest="all_cells")
        parser.add_argument("--where")
    if verb == "status":
        parser.add_argument("--nodes", action="store_true")
    if verb == "doctor":
        parser.add_argument("--no-job", action="store_false", dest="with_job")
        parser.add_argument("--all-nodes", action="store_true")
        parser.add_argument("--timeout", type=float, default=120.0, dest="timeout_s", metavar="SECONDS")
    if verb == "logs":
        parser.add_argument("--follow", "-f", action="store_true")
        parser.add_argument("--raw", action="store_true")
        parser.add_argument("--attempt", type=_whole_number)
        parser.add_argument("--repeat", type=_whole_number, default=1)
    return parser


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number such as 1")
    return int(text)


def _split(parser: _Parser, words: list[str], verb: str) -> tuple[argparse.Namespace, list[str]]:
    names, others = parser.parse_known_args(words)
    flags = [word for word in others if word.startswith("-")]
    if flags:
        known = [option for action in parser._actions for option in action.option_strings]
        raise UsageError(f"{verb} has no flag {flags[0]}; it has {', '.join(known)}.")
    return names, others


def _is_cell(word: str) -> bool:
    return "=" not in word and len(word) >= 4 and all(letter in "0123456789abcdef" for letter in word)


def _not_an_override(word: str, verb: str, *, is_verb_given: bool) -> str:
    if word in VERBS:
        if is_verb_given:
            return f"two verbs: {verb} and {word}. Give one of them."
        return f"the verb {word} comes first, before flags and overrides: python -m sweep {word} ..."
    if verb in ("status", "logs", "cancel"):
        return (
            f"{word!r} is neither a cell nor an override. A cell is given by its id or the beginning of one (four hex "
            f"digits or more, as in the first column of 'python -m sweep status'), an override as KEY=VALUE."
        )
    near = nearest(word, VERBS)
    hint = f" Did you mean the verb {near[0]!r}?" if near else ""
    return f"{word!r} is neither a verb ({', '.join(VERBS)}) nor an override such as nodes=[1,2,4].{hint}"


def help_text(grids: Mapping[str, str]) -> str:
    """The text that ``--help`` prints.

    Args:
        grids: Names and one-line descriptions of the grids that can be run.
    """
    verbs = "\n".join(f"  {name:<8} {text}" for name, text in VERBS.items())
    width = max(map(len, grids), default=0)
    listed = "\n".join(f"  {name:<{width}}  {text}" for name, text in grids.items())
    return f"""\
usage: python -m sweep [VERB] +grid=NAME [cluster=NAME] [scale=laptop|paper] [AXIS=VALUE | AXIS=[VALUES]] [KEY=VALUE]

Runs a grid of training configurations as torchrun jobs and turns the runs into scaling tables and figures.

verbs:
{verbs}

grids (+grid=NAME):
{listed}

flags:
  --config-dir DIR   a folder with grids, clusters and models of your own, searched before the shipped ones
  --json             (plan, status, cancel, doctor) one JSON object on standard output, the rest on standard error
  --nodes            (status) nodes that attempts on this cluster blame, with the evidence
  --all, --where C   (cancel) every cell of the run, or those that meet a condition such as 'nodes > 4 and tp == 1'
  --all-nodes        (doctor) check every node of the partition by one job, and name those to leave out
  --no-job           (doctor) submit nothing; --timeout SECONDS to wait for its small job (120)
  --follow           (logs) go on as they grow; --attempt N and --repeat N choose other than the latest;
                     --raw prints colours and other control characters as they are

status CELL shows every attempt at a cell and why it ended as it did.
status, logs, cancel and tables find the run directory below runs/ when there is one, or take run_dir=DIR or +grid=NAME.

{EXAMPLES}

exit codes: 0 every cell measured or explained; 1 some cell given up, cancelled, paused, over a limit or the budget;
            2 bad usage or configuration; 3 submitted and not watched to the end; 130 interrupted while jobs go on"""
