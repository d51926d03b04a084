"""Makes the options and commands of a job script from a site's settings and a submission."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sweep.adapters.files.sources_snapshot import check_text, checked_command
from sweep.adapters.slurm.fields import SAY_ZONE, parse_nodes
from sweep.core.jobs.set_up import set_up_script
from sweep.core.jobs.submission import Submission, safe_name
from sweep.core.records.layout import SUBMISSION_LOGS_DIR
from sweep.core.settings.spec import GpuFlag, SlurmSpec
from sweep.ports import SchedulerError, SubmissionRejectedError

OWNED_OPTIONS = frozenset(
    {
        *("array", "job-name", "nodes", "ntasks", "ntasks-per-node", "time", "signal"),
        *("output", "error", "open-mode", "requeue", "no-requeue"),
        *("clusters", "parsable", "quiet", "test-only", "wait", "wrap"),
    }
)
"""Options that only the tool sets: it finds a job, maps it to its attempt and gives it the cell's resources by them."""

_OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


def check_site(spec: SlurmSpec) -> None:
    """Refuse settings that cannot stand in a job script, or that set an option which only the tool sets.

    Raises:
        SchedulerError: If there is such a setting; the message says what to change.
    """
    for name in spec.sbatch:
        option = name.replace("_", "-")
        if not _OPTION.fullmatch(option):
            raise SchedulerError(
                f"slurm.sbatch: {name!r} is no long option of sbatch. Write its name without leading dashes."
            )
        if option in OWNED_OPTIONS:
            raise SchedulerError(f"slurm.sbatch.{name}: this tool sets --{option} itself. Leave it out.")
    asked = {
        name: getattr(spec, name)
        for name in ("partition", "account", "qos", "reservation", "constraint", "exclude", "mem")
    }
    lists = {"srun_args": spec.srun_args, "container": spec.container}
    texts = [
        *((name, value) for name, value in asked.items()),
        *((f"sbatch.{name}", value) for name, value in spec.sbatch.items()),
        *((name, word) for name, words in lists.items() for word in words),
    ]
    for name, value in texts:
        if _UNPRINTABLE.search(str(value)):
            # A line break would end the #SBATCH line, and the shell would run the rest as a command.
            raise SchedulerError(
                f"slurm.{name}: {value!r} holds a line break or control character. Write it in one line."
            )


def sbatch_parameters(submission: Submission, spec: SlurmSpec) -> dict[str, Any]:
    """Parameters for submitit; an option that the site does not set is left out."""
    if submission.name != safe_name(submission.name):
        raise SubmissionRejectedError(
            f"{submission.name!r} cannot be a job name. It takes letters, digits, '_', '.' and '-'."
        )
    if _UNPRINTABLE.search(submission.run_dir) or "\\" in submission.run_dir:
        raise SubmissionRejectedError(
            f"the run directory {submission.run_dir!r} holds a backslash or control character, which Slurm does not "
            "take literally in a path. Choose another run_dir."
        )
    asked = {
        "partition": spec.partition,
        "account": spec.account,
        "qos": spec.qos,
        "constraint": spec.constraint,
        "exclude": excluded(submission, spec),
        "mem": spec.mem,
        "cpus_per_task": spec.cpus_per_task,
        "exclusive": spec.exclusive or None,
        **_gpus(submission, spec),
    }
    return {
        **{name: value for name, value in asked.items() if value is not None},
        "job_name": submission.name,
        "time": submission.walltime_min,
        "nodes": submission.nodes,
        "ntasks_per_node": 1,
        "signal_delay_s": signal_delay_s(submission, spec),
        # sweep.core.decisions.admission limits how many tasks run at once, over all arrays together.
        "array_parallelism": len(submission.tasks),
        "setup": [SAY_ZONE, *set_up_script(spec.setup), f"sweep_check={shlex.quote(check_text())}"],
        "stderr_to_stdout": True,
        "use_srun": False,  # the command has its own srun; submitit's would write a log file for each rank
        "wckey": None,  # submitit's own, which a cluster that enforces wckeys refuses
        "additional_parameters": _further(submission, spec),
    }


def excluded(submission: Submission, spec: SlurmSpec) -> str | None:
    """Nodes that the site's settings or the submission exclude."""
    named = (spec.exclude, spec.sbatch.get("exclude"), *submission.exclude)
    return ",".join(dict.fromkeys(str(name) for name in named if name)) or None


def own_exclude(spec: SlurmSpec) -> tuple[str, ...]:
    """Nodes that the site's settings exclude, one by one; a file of names (it has a slash) stays as it is."""
    named = (spec.exclude, spec.sbatch.get("exclude"))
    return tuple(dict.fromkeys(node for words in named if words for node in parse_nodes(str(words))))


def without_unknown(spec: SlurmSpec, known: Collection[str]) -> tuple[SlurmSpec, tuple[str, ...]]:
    """The settings without excluded nodes that the cluster does not know, and those: Slurm would refuse every job."""
    named = own_exclude(spec)
    unknown = tuple(node for node in named if node not in known and "/" not in node)
    if not unknown:
        return spec, ()
    fitting = ",".join(node for node in named if node not in unknown) or None
    free = {name: value for name, value in spec.sbatch.items() if name != "exclude"}
    return replace(spec, exclude=fitting, sbatch=free), unknown


def signal_delay_s(submission: Submission, spec: SlurmSpec) -> int:
    """Seconds before the walltime's end at which Slurm signals the job: as set, but at most a quarter of the walltime.

    Slurm may send the signal up to a minute earlier: with 90 s a job of two minutes got it after 12 s.
    """
    return min(spec.signal_delay_s, submission.walltime_min * 60 // 4)


def _gpus(submission: Submission, spec: SlurmSpec) -> dict[str, Any]:
    """The option that reserves GPUs. The site decides, not the device: a rehearsal on CPUs reserves them too."""
    number = f"{spec.gpu_type}:{submission.gpus_per_node}" if spec.gpu_type else str(submission.gpus_per_node)
    if spec.gpu_flag is GpuFlag.GPUS_PER_NODE:
        return {"gpus_per_node": number}
    return {"gres": f"gpu:{number}"} if spec.gpu_flag is GpuFlag.GRES else {}


def _further(submission: Submission, spec: SlurmSpec) -> dict[str, Any]:
    """Options for which submitit has no parameter; the site's own come last and win."""
    ours = {"no-requeue": True, "output": log_pattern(submission), "reservation": spec.reservation}
    # exclude is a parameter already, together with the submission's own nodes; a second one would replace it.
    theirs = {name.replace("_", "-"): value for name, value in spec.sbatch.items() if name != "exclude"}
    return {name: value for name, value in {**ours, **theirs}.items() if value is not None and value is not False}


def log_file(submission_name: str, job_id: str) -> str:
    """Log of a job until it knows its attempt, relative to the run directory; one file for all its nodes."""
    return f"{SUBMISSION_LOGS_DIR}/{submission_name}-{job_id}.log"


def log_pattern(submission: Submission) -> str:
    """The path of :func:`log_file` with sbatch's patterns in the place of the job id."""
    job_id = "%A_%a" if len(submission.tasks) > 1 else "%j"
    folder = submission.run_dir.replace("%", "%%")
    return f"{folder}/{log_file(submission.name, job_id)}"


def launch_command(submission: Submission, spec: SlurmSpec, python: str) -> str:
    """The last line of the job script: srun, the site's container command as it is written, the check, the launcher."""
    srun = [
        *("srun", "--unbuffered", "--label", "--kill-on-bad-exit=1", "--wait=60"),
        "--export=ALL",  # where a site sets sbatch's --export=NONE, srun would drop what the setup lines export
        *(
            [] if spec.cpus_per_task is None else [f"--cpus-per-task={spec.cpus_per_task}"]
        ),  # srun does not inherit sbatch's
        *spec.srun_args,
    ]
    options = ("-m", "sweep.launch", "--submission", f"{submission.run_dir}/{submission.file}")
    launcher = checked_command(python, submission.sources_dir, submission.sources_hash, *options, text="$sweep_check")
    words = ['"$sweep_check"' if word == "$sweep_check" else shlex.quote(word) for word in launcher]
    return " ".join([shlex.join(srun), *spec.container, *words])
