"""The private Slurm itself, which the other integration tests need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.commands import wait_for
from tools.private_slurm import Cluster, PrivateSlurmError, main

if TYPE_CHECKING:
    from tests.integration.conftest import SlurmUnderTest

pytestmark = pytest.mark.slurm

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "private_slurm.py"


def living_processes_that_mention(*texts: str) -> list[str]:
    """Processes with one of the texts in their command, environment or working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), os.getppid()):
            continue
        try:
            dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            seen = command + (entry / "environ").read_bytes().decode(errors="replace")
            seen += str((entry / "cwd").readlink())
        except OSError:
            continue
        if not dead and any(text in seen for text in texts):
            found.append(f"{entry.name}: {command}")
    return found


def _is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def test_up_on_a_running_cluster_only_verifies(slurm: SlurmUnderTest) -> None:
    before = slurm.cluster.status()
    assert slurm.cluster.up() is False
    after = slurm.cluster.status()
    assert (after.up, after.daemons) == (before.up, before.daemons)


def test_its_daemons_listen_on_the_loopback_interface_only(slurm: SlurmUnderTest) -> None:
    daemons, home = {"slurmctld", "slurmdbd", "slurmd"}, str(slurm.cluster.layout.base)
    found = {
        (process.name(), socket.laddr.ip)
        for process in psutil.process_iter()
        if process.name() in daemons and any(home in word for word in (*process.cmdline(), *process.environ().values()))
        for socket in process.net_connections(kind="inet")
        if socket.status == psutil.CONN_LISTEN
    }
    assert {name for name, _ in found} == daemons
    assert {address for _, address in found} == {"127.0.0.1"}


def test_a_job_over_two_nodes_with_all_their_gpus_completes(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    job = slurm.sbatch(
        'srun sh -c "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'.replace("$", r"\$"),
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gres=gpu:8",
        f"--output={out}",
    )
    assert slurm.wait_ended(job) == "COMPLETED"
    lines = sorted(line.split() for line in out.read_text().splitlines())
    assert [devices for _, devices in lines] == ["0,1,2,3,4,5,6,7"] * 2
    assert len({node for node, _ in lines} & set(slurm.nodes)) == 2


def test_a_failing_job_is_not_called_completed(slurm: SlurmUnderTest) -> None:
    assert slurm.wait_ended(slurm.sbatch("exit 3")) == "FAILED"


def test_more_gpus_than_a_node_has_are_refused(slurm: SlurmUnderTest) -> None:
    with pytest.raises(AssertionError, match="node configuration is not available"):
        slurm.sbatch("true", "--gres=gpu:9")


def test_a_failed_node_takes_its_job_with_it_and_comes_back(slurm: SlurmUnderTest) -> None:
    node = slurm.nodes[-1]
    mark = uuid.uuid4().hex
    job = slurm.sbatch(f"export MARK={mark}; exec sleep 600", "--no-requeue", f"--nodelist={node}")
    slurm.wait_running(job)
    slurm.fail_node(node)
    try:
        assert slurm.wait_ended(job) == "NODE_FAIL"
        assert slurm.cluster.node_states()[node].startswith("down")
        assert not slurm.cluster.status().up
        assert living_processes_that_mention(mark) == []
    finally:
        slurm.restore_node(node)
    assert slurm.cluster.status().up
    assert slurm.wait_ended(slurm.sbatch("true", f"--nodelist={node}")) == "COMPLETED"


def test_jobs_outlive_the_controller_and_accounting(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = slurm.sbatch(f"until [ -e '{gate}' ]; do sleep 0.1; done")
    slurm.wait_running(job)
    slurm.stop_accounting()
    slurm.stop_controller()
    assert slurm.cluster.status().problems == ["slurmdbd is not running", "slurmctld is not running"]
    slurm.start_controller()
    slurm.start_accounting()
    gate.touch()
    assert slurm.wait_ended(job) == "COMPLETED"


def test_settings_are_applied_and_taken_back(slurm: SlurmUnderTest) -> None:
    with slurm.settings(MaxArraySize="5"):
        assert "MaxArraySize            = 5\n" in slurm.run("scontrol", "show", "config")
        with pytest.raises(AssertionError, match="Invalid job array specification"):
            slurm.sbatch("true", "--array=0-5")
    assert "MaxArraySize            = 1001\n" in slurm.run("scontrol", "show", "config")


def test_a_job_of_high_priority_preempts_one_of_low_priority(slurm: SlurmUnderTest) -> None:
    everything = (f"--nodes={len(slurm.nodes)}", "--exclusive")
    low = slurm.sbatch("exec sleep 4712", "--qos=low", "--requeue", *everything)
    slurm.wait_running(low)
    high = slurm.sbatch("true", "--qos=high", *everything)
    assert slurm.wait_ended(high) == "COMPLETED"
    assert "Restarts=1 " in slurm.run("scontrol", "show", "job", low)
    slurm.run("scancel", low)


@pytest.mark.parametrize(
    ("setting", "complaint"), [("StateSaveLocation=/tmp", "own layout"), ("Nodes Per=3", "not a line")]
)
def test_settings_that_would_break_the_layout_are_refused(slurm: SlurmUnderTest, setting: str, complaint: str) -> None:
    key, _, value = setting.partition("=")
    with pytest.raises(PrivateSlurmError, match=complaint):
        slurm.cluster.up(set_values={key: value})


def test_a_directory_with_foreign_files_is_left_alone(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("42")
    for arguments in (["up"], ["down", "--purge"]):
        assert main([*arguments, "--dir", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == [precious]


def test_a_second_cluster_runs_beside_the_first_is_repaired_and_leaves_no_process(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    directory = tmp_path / ("a long [name] with, odd: characters # " + "x" * 120)
    other, mark = Cluster(directory), uuid.uuid4().hex
    # A temporary table of another database server at work.
    temporary_table = Path(tempfile.gettempdir(), f"#sql-temptable-{mark}-1-3.MAI")
    temporary_table.touch()

    def run(*arguments: str) -> None:
        subprocess.run([sys.executable, SCRIPT, *arguments, "--dir", directory], check=True, timeout=600)

    try:
        run("up", "--nodes", "1", "--gpus-per-node", "1", "--cpus-per-node", "2")
        assert slurm.cluster.up() is False  # undisturbed
        assert temporary_table.exists()
        daemons = other.status().daemons
        assert set(daemons.values()).isdisjoint(slurm.cluster.status().daemons.values())

        for name in ("slurmctld", "mariadbd"):
            pid = daemons[name]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            # A question to a dying controller lasts until Slurm's time-out.
            wait_for(partial(_is_gone, pid), 60, "it is gone")
        assert other.status().problems == ["mariadbd is not running", "slurmctld is not running"]
        run("up")
        assert other.status().up

        other.run("sbatch", "--output=/dev/null", f"--wrap=export MARK={mark}; setsid sleep 600 & exec sleep 600")
    finally:
        temporary_table.unlink(missing_ok=True)
        run("down", "--purge")
    assert not directory.exists()
    assert living_processes_that_mention(str(other.layout.run), str(directory), mark) == []
    assert slurm.cluster.up() is False
