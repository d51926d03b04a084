"""The job script: golden texts for several sites, and values that try to be more than values."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sweep.adapters.files.sources_snapshot import check_text
from sweep.adapters.slurm.commands import SlurmCommands
from sweep.adapters.slurm.script import check_site, sbatch_parameters, signal_delay_s
from sweep.adapters.slurm.submitit_executor import LaunchExecutor
from sweep.core.jobs.submission import Submission
from sweep.core.settings.spec import GpuFlag, LaunchSpec, SlurmSpec
from sweep.ports import SchedulerError, SubmissionRejectedError
from tests.fakes import submission_of

GOLDEN = Path(__file__).parents[3] / "golden" / "slurm"

SUBMISSION = submission_of(
    tasks=3,
    name="weak_scaling-7b-3f2a",
    run_dir="/shared/runs/weak_scaling-slurm",
    nodes=4,
    gpus_per_node=8,
    device_type="cuda",
    walltime_min=60,
    sources_dir="/shared/runs/weak_scaling-slurm/sources/0123abcd",
    sources_hash="0123abcd",
    launch=LaunchSpec(python="/shared/env/bin/python"),
)
ONE_TASK = replace(SUBMISSION, tasks=SUBMISSION.tasks[:1])
EVERY_SETTING = SlurmSpec(
    partition="gpu",
    account="ml-systems",
    qos="high",
    reservation="scaling week",
    constraint="[rack1|rack2]",
    exclude="gpu[13,17]",
    exclusive=True,
    mem="0",
    gpu_flag=GpuFlag.GRES,
    cpus_per_task=96,
    max_concurrent_jobs=2,
    signal_delay_s=120,
    sbatch={"switches": "1@10:00", "mail_type": "END", "comment": 'it\'s "ours" #1', "nice": True, "hint": None},
    srun_args=("--mpi=pmix", "--container-image=ngc/pytorch:25.01 x"),
    setup=("module load cuda/12.8", 'source "$HOME/env.sh"  # as written'),
    container=("apptainer", "exec", "--nv", "$SIF"),
)


def script(submission: Submission, spec: SlurmSpec) -> str:
    return LaunchExecutor(submission, spec, python="/this/python", commands=SlurmCommands({})).script_text()


@pytest.mark.parametrize(
    ("name", "submission", "spec"),
    [
        ("script-array.sh", SUBMISSION, SlurmSpec()),
        ("script-one-task.sh", ONE_TASK, SlurmSpec(gpu_flag=GpuFlag.NONE)),
        ("script-every-setting.sh", SUBMISSION, EVERY_SETTING),
    ],
)
def test_the_script_is_the_golden_one(name: str, submission: Submission, spec: SlurmSpec) -> None:
    assert script(submission, spec) == (GOLDEN / name).read_text()


def options_of(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_slurms_own_mails_are_asked_for_as_the_documentation_says() -> None:
    spec = SlurmSpec(sbatch={"mail-user": "me@example.org", "mail-type": "FAIL"})
    assert {"--mail-user=me@example.org", "--mail-type=FAIL"} <= set(options_of(script(SUBMISSION, spec)))


def test_a_hostile_partition_stays_one_quoted_value() -> None:
    text = script(ONE_TASK, SlurmSpec(partition="a; rm -rf $HOME #'"))
    assert "--partition='a; rm -rf $HOME #'\"'\"''" in options_of(text)
    assert [line for line in text.splitlines() if "rm -rf" in line and not line.startswith("#SBATCH")] == []


@pytest.mark.parametrize(
    "spec",
    [
        SlurmSpec(partition="gpu\nrm -rf /"),
        SlurmSpec(account="a\rb"),
        SlurmSpec(sbatch={"comment": "a\nrm -rf /"}),
        SlurmSpec(srun_args=("--mpi=a\nrm -rf /",)),
        SlurmSpec(container=("apptainer", "exec\nrm -rf /")),
    ],
)
def test_a_value_that_would_end_its_line_is_refused(spec: SlurmSpec) -> None:
    with pytest.raises(SchedulerError, match="line break"):
        check_site(spec)


@pytest.mark.parametrize("name", ["--nice", "nice=0 --wrap", "Nice", "a\nb", ""])
def test_a_parameter_that_is_no_option_is_refused(name: str) -> None:
    with pytest.raises(SchedulerError, match="no long option"):
        check_site(SlurmSpec(sbatch={name: "1"}))


@pytest.mark.parametrize("name", ["job-name", "job_name", "array", "output", "time", "requeue", "clusters"])
def test_an_option_that_only_the_tool_sets_is_refused(name: str) -> None:
    with pytest.raises(SchedulerError, match="sets --"):
        check_site(SlurmSpec(sbatch={name: "x"}))


def test_ordinary_settings_are_accepted() -> None:
    check_site(SlurmSpec())
    check_site(EVERY_SETTING)


def test_a_sites_own_parameter_wins() -> None:
    spec = SlurmSpec(reservation="all", sbatch={"gpus-per-node": "h100:8", "reservation": "mine"})
    options = options_of(script(ONE_TASK, spec))
    assert {"--gpus-per-node=h100:8", "--reservation=mine"} <= set(options)
    assert "--reservation=all" not in options


@pytest.mark.parametrize(
    ("spec", "avoided", "expected"),
    [
        (SlurmSpec(), (), []),
        (SlurmSpec(exclude="gpu[013,027]"), (), ["--exclude='gpu[013,027]'"]),
        (SlurmSpec(), ("node2", "node3"), ["--exclude=node2,node3"]),
        (SlurmSpec(exclude="gpu[013,027]"), ("node2",), ["--exclude='gpu[013,027],node2'"]),
        (SlurmSpec(exclude="node2", sbatch={"exclude": "node3"}), ("node2",), ["--exclude=node2,node3"]),
    ],
)
def test_nodes_of_the_site_and_of_the_submission_are_excluded_together(
    spec: SlurmSpec, avoided: tuple[str, ...], expected: list[str]
) -> None:
    options = options_of(script(replace(ONE_TASK, exclude=avoided), spec))
    assert [option for option in options if "exclude" in option] == expected


def test_no_wckey_unless_asked() -> None:
    assert "wckey" not in script(SUBMISSION, SlurmSpec())
    assert "--wckey=scaling" in options_of(script(SUBMISSION, SlurmSpec(sbatch={"wckey": "scaling"})))


def test_an_array_may_run_all_its_tasks_at_once() -> None:
    many = replace(SUBMISSION, tasks=tuple(replace(SUBMISSION.tasks[0], attempt=number) for number in range(1, 401)))
    assert "--array=0-399%400" in options_of(script(many, SlurmSpec()))
    assert "--array=0-399%400" in options_of(script(many, SlurmSpec(max_concurrent_jobs=16)))


@pytest.mark.parametrize(("walltime_min", "delay_s"), [(1, 15), (2, 30), (4, 60), (60, 60), (1440, 60)])
def test_the_signal_comes_in_the_last_quarter_of_the_walltime(walltime_min: int, delay_s: int) -> None:
    submission = replace(SUBMISSION, walltime_min=walltime_min)
    assert signal_delay_s(submission, SlurmSpec(signal_delay_s=60)) == delay_s
    assert f"--signal=USR2@{delay_s}" in options_of(script(submission, SlurmSpec(signal_delay_s=60)))


@pytest.mark.parametrize(
    ("flag", "option"), [(GpuFlag.GRES, "--gres=gpu:h100:8"), (GpuFlag.GPUS_PER_NODE, "--gpus-per-node=h100:8")]
)
def test_a_type_of_gpu_is_asked_for_as_the_site_names_it(flag: GpuFlag, option: str) -> None:
    assert option in options_of(script(ONE_TASK, SlurmSpec(gpu_flag=flag, gpu_type="h100")))


def test_gpus_are_reserved_for_a_rehearsal_on_cpus() -> None:
    rehearsal = replace(ONE_TASK, device_type="cpu")
    assert "--gpus-per-node=8" in options_of(script(rehearsal, SlurmSpec()))


def test_a_job_name_with_special_characters_is_refused() -> None:
    with pytest.raises(SubmissionRejectedError, match="job name"):
        sbatch_parameters(replace(SUBMISSION, name="a b"), SlurmSpec())


@pytest.mark.parametrize("run_dir", ["/runs/a\nb", "/runs/a\\b"])
def test_a_run_directory_that_slurm_reads_as_a_pattern_is_refused(run_dir: str) -> None:
    with pytest.raises(SubmissionRejectedError, match="run directory"):
        sbatch_parameters(replace(SUBMISSION, run_dir=run_dir), SlurmSpec())


def test_a_percent_sign_in_the_run_directory_is_no_pattern() -> None:
    text = script(replace(ONE_TASK, run_dir="/runs/100%j"), SlurmSpec())
    assert "--output=/runs/100%%j/submissions/logs/weak_scaling-7b-3f2a-%j.log" in options_of(text)


def test_the_script_runs_exactly_the_launcher_whatever_characters_the_paths_have(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@" PYTHONPATH="$PYTHONPATH"\n')
    srun.chmod(0o755)
    run_dir = '/runs/it\'s $HOME `id` "x" %j;*'
    submission = replace(ONE_TASK, run_dir=run_dir, sources_dir=f"{run_dir}/sources")
    text = script(submission, SlurmSpec(cpus_per_task=4, srun_args=("--mpi=a b",)))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": "/site", "TZ": "Asia/Tokyo"}
    done = subprocess.run(["bash"], input=text, env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    zone, *words = done.stdout.splitlines()
    assert re.fullmatch(r"sweep: zone [+-]\d{4}", zone)
    assert words == [
        *(
            "--unbuffered",
            "--label",
            "--kill-on-bad-exit=1",
            "--wait=60",
            "--export=ALL",
            "--cpus-per-task=4",
            "--mpi=a b",
        ),
        *("/shared/env/bin/python", "-I", "-S", "-c", *check_text().splitlines(), ""),
        *(f"{run_dir}/sources", "0123abcd", "-m", "sweep.launch"),
        *("--submission", f"{run_dir}/submissions/weak_scaling-7b-3f2a.json"),
        "PYTHONPATH=/site",
    ]


def test_the_interpreter_is_this_one_unless_named() -> None:
    unnamed = replace(ONE_TASK, launch=LaunchSpec())
    assert "/this/python -I -S -c" in script(unnamed, SlurmSpec())
