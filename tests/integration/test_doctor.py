"""``python -m sweep doctor`` on a real Slurm: clean there, and what is wrong is reported with its mend."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Shell, wait_for
from tests.integration.conftest import SlurmUnderTest

pytestmark = pytest.mark.slurm


@pytest.fixture
def shell(slurm: SlurmUnderTest, tmp_path: Path) -> Shell:
    return Shell(folder=tmp_path, env=dict(slurm.env))


def doctor(shell: Shell, *arguments: str, cluster: str = "private_slurm") -> tuple[int, list[dict[str, Any]]]:
    done = shell.run("doctor", f"cluster={cluster}", "--json", *arguments)
    assert done.out, done.err
    body = json.loads(done.out)
    assert body["exit_code"] == done.code
    assert list(shell.folder.iterdir()) == [], "nothing is left behind"
    return done.code, body["findings"]


def problems(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {item["name"]: item["mend"] for item in findings if item["verdict"] == "problem"}


def test_the_private_cluster_is_sound(slurm: SlurmUnderTest, shell: Shell) -> None:
    code, findings = doctor(shell, "cluster.slurm.setup=[true --x]")
    assert code == 0
    assert {item["verdict"] for item in findings} == {"ok"}, findings
    facts = {item["name"]: item["fact"] for item in findings}
    assert facts["set-up lines"] == "1 passed"
    assert "node1, node2" in facts["run directory on the nodes"]
    assert facts["rendezvous"].startswith("node2 reached 127.0.0.1")
    assert slurm.run("squeue", "-h", "-o", "%j").find("doctor") == -1


def test_doctor_without_its_job_submits_nothing(shell: Shell) -> None:
    code, findings = doctor(shell, "+grid=weak_scaling", "nodes=[1,2]", "--no-job")
    assert code == 0
    assert [item["name"] for item in findings if item["verdict"] == "not checked"] == ["nodes"]
    assert {"job script (1 x 1 GPUs)", "job script (2 x 1 GPUs)"} <= {item["name"] for item in findings}


@pytest.mark.parametrize(
    ("override", "name", "mend"),
    [
        ("cluster.slurm.partition=nope", "partition", "Set cluster.slurm.partition to one of: debug."),
        ("cluster.slurm.qos=nope", "account and QOS", "Set cluster.slurm.qos to one of: high, low, normal."),
        ("cluster.slurm.account=nope", "account and QOS", "Set cluster.slurm.account to one of: root, sweep."),
        (
            "cluster.slurm.reservation=nope",
            "reservation",
            "Set cluster.slurm.reservation to one of: none, leave it out.",
        ),
        ("cluster.gpus_per_node=9", "job script (1 x 9 GPUs)", "gpu_flag"),
    ],
)
def test_a_wrong_setting_is_reported_with_what_would_be_right(
    shell: Shell, override: str, name: str, mend: str
) -> None:
    code, findings = doctor(shell, override, "--no-job")
    assert code == 1
    assert mend in problems(findings)[name]


def test_doctor_shows_how_to_run_without_sacct(slurm: SlurmUnderTest, shell: Shell) -> None:
    """A sacct that fails as it does where accounting is off, before the real commands in PATH."""
    stub = shell.folder.parent / f"{shell.folder.name}-bin"
    stub.mkdir()
    (stub / "sacct").write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    (stub / "sacct").chmod(0o755)
    without = Shell(folder=shell.folder, env={**shell.env, "PATH": f"{stub}:{shell.env['PATH']}"})
    code, findings = doctor(without, "--no-job")
    assert code == 1
    assert "cluster.slurm.sacct=false" in problems(findings)["accounting"]
    code, findings = doctor(without, "--no-job", "cluster.slurm.sacct=false")
    assert code == 0


def test_an_interpreter_that_is_missing_on_the_nodes_is_a_problem_with_the_jobs_message(shell: Shell) -> None:
    code, findings = doctor(shell, "cluster.launch.python=/nowhere/python")
    assert code == 1
    assert "cluster.launch.python" in problems(findings)["nodes"]
    assert any("/nowhere/python: No such file" in item["fact"] for item in findings)


@pytest.mark.parametrize("cluster", ["private_slurm", "local"])
def test_a_set_up_line_that_fails_is_a_problem_with_the_line_and_its_words(shell: Shell, cluster: str) -> None:
    code, findings = doctor(shell, "cluster.slurm.setup=[nosuch_command --x]", cluster=cluster)
    assert code == 1
    (fact,) = (item["fact"] for item in findings if item["name"] == "set-up lines")
    assert "`nosuch_command --x` ended with exit code 127" in fact
    assert "command not found" in fact
    assert "cluster.slurm.setup" in problems(findings)["set-up lines"]


def test_a_job_that_waits_is_reported_with_slurms_reason_and_cancelled(slurm: SlurmUnderTest, shell: Shell) -> None:
    code, findings = doctor(shell, "cluster.slurm.sbatch.begin=now+1hour", "--timeout", "3")
    assert code == 1
    nodes = next(item for item in findings if item["name"] == "nodes")
    assert "still waited after 3 s (BeginTime)" in nodes["fact"]
    assert slurm.run("squeue", "-h", "-o", "%j").find("doctor") == -1


@pytest.mark.slow
def test_a_controller_that_is_away_is_a_problem_and_the_rest_is_not_checked(
    slurm: SlurmUnderTest, shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nobody_listens = re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", Path(slurm.env["SLURM_CONF"]).read_text())
    conf = tmp_path_factory.mktemp("etc") / "slurm.conf"
    conf.write_text(f"{nobody_listens}\nMessageTimeout=2\n")
    away = Shell(folder=shell.folder, env={**shell.env, "SLURM_CONF": str(conf)})
    code, findings = doctor(away)
    assert code == 1
    assert "controller" in problems(findings)
    assert {item["verdict"] for item in findings if item["name"] in ("partition", "job script", "nodes")} == {
        "not checked"
    }


def test_doctor_checks_this_machine_without_slurm_too(shell: Shell) -> None:
    code, findings = doctor(shell, cluster="local")
    assert code == 0, findings
    assert "torch on the nodes" in {item["name"] for item in findings}


def verdicts(findings: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {item["name"]: (item["verdict"], item["fact"]) for item in findings}


def test_every_node_is_checked_and_each_sick_one_is_named_with_what_it_lacks(
    slurm: SlurmUnderTest, shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A node's set-up line fails, another's hangs, a third is drained; the line to leave them out is one that works."""
    healthy, failing, hanging, drained = slurm.nodes[:4]
    lines = [f"[ $SLURMD_NODENAME != {failing} ]", f"if [ $SLURMD_NODENAME = {hanging} ]; then sleep 600; fi"]
    slurm.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=bad fan")
    try:
        setup = f"cluster.slurm.setup={json.dumps(lines)}"
        code, findings = doctor(shell, "--all-nodes", "--timeout", "20", setup)
    finally:
        slurm.run("scontrol", "update", f"nodename={drained}", "state=resume")
    found = verdicts(findings)
    assert code == 1
    assert found["nodes"] == ("ok", f"nothing is wrong with {healthy}")
    assert found[failing] == ("problem", f"the set-up line `{lines[0]}` ended with exit code 1")
    assert found[hanging] == ("problem", "its check did not come back within 20 s")
    assert found[drained] == ("not checked", "Slurm says drained: bad fan")
    assert slurm.run("squeue", "-h", "-t", "PD,R", "-o", "%j").find("doctor") == -1
    (word,) = shlex.split(next(item["mend"] for item in findings if item["name"] == "exclude"))
    assert word == f"cluster.slurm.exclude='{failing},{hanging}'"
    elsewhere = replace(shell, folder=tmp_path_factory.mktemp("plan"))
    assert elsewhere.run("plan", "+grid=weak_scaling", "cluster=private_slurm", word).code == 0


def test_a_node_on_which_nothing_can_start_ends_the_job_and_not_the_report_of_the_others(
    slurm: SlurmUnderTest, shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The Prolog fails on the job's first node: Slurm cancels the whole job, and drains the node."""
    first, *others = slurm.nodes
    prolog = tmp_path_factory.mktemp("prolog") / "prolog.sh"
    prolog.write_text(f'#!/bin/bash\n[ "$SLURMD_NODENAME" != {first} ] || [ ! -e {prolog.parent}/broken ]\n')
    prolog.chmod(0o755)
    slurm.cluster.up(set_values={"Prolog": str(prolog)})
    (prolog.parent / "broken").touch()
    try:
        code, findings = doctor(shell, "--all-nodes", "--timeout", "60")
    finally:
        (prolog.parent / "broken").unlink()
        slurm.run("scontrol", "update", f"nodename={first}", "state=resume")
        slurm.cluster.up(set_values={"Prolog": ""})
    found = verdicts(findings)
    assert code == 1
    assert found[first][0] == "problem"
    assert "Prolog error" in found[first][1]
    assert found["nodes"] == ("ok", f"nothing is wrong with {', '.join(others)}")


@contextmanager
def blind(slurm: SlurmUnderTest, folder: Path, *nodes: str) -> Iterator[None]:
    """Nodes that do not see a folder: their slurmds run where another file system covers it."""
    before, started = {node: began(slurm, node) for node in nodes}, list[subprocess.Popen[bytes]]()
    cover, conf = f"mount -t tmpfs none {shlex.quote(str(folder))}", shlex.quote(slurm.env["SLURM_CONF"])
    try:
        for node in nodes:
            slurm.fail_node(node, is_noticed=False)
            program = ["unshare", "-m", "bash", "-c", f"{cover} && exec slurmd -D -N {node} -f {conf}"]
            started.append(subprocess.Popen(program, env=dict(slurm.env), stderr=subprocess.DEVNULL))
        wait_for(lambda: all(began(slurm, node) != before[node] for node in nodes), 30, "their slurmds are back")
        yield
    finally:
        for process, node in zip(started, nodes, strict=False):
            process.kill()
            process.wait()
            slurm.restore_node(node)


def began(slurm: SlurmUnderTest, node: str) -> str:
    """The time at which the node's slurmd began, as the controller knows it."""
    return slurm.run("scontrol", "-o", "show", "node", node).partition("SlurmdStartTime=")[2].split()[0]


def test_nodes_that_lack_the_run_directory_are_named_the_jobs_first_node_too(
    slurm: SlurmUnderTest, shell: Shell
) -> None:
    first, sound, other, last = slurm.nodes[:4]
    with blind(slurm, shell.folder, first, other):
        code, findings = doctor(shell, "--all-nodes", "--timeout", "90")
    found = verdicts(findings)
    assert code == 1
    assert found[first] == ("problem", "the job ended there as FAILED (JobLaunchFailure)")
    assert found[other][1].startswith("it does not see what is written here into the run directory (cat: ")
    assert found["nodes"] == ("ok", f"nothing is wrong with {sound}, {last}")


def test_a_port_that_is_not_reached_and_a_node_that_is_busy_are_distinguished(
    slurm: SlurmUnderTest, shell: Shell
) -> None:
    """Each node has a port of its own; a stranger listens at one of them and never answers."""
    busy = slurm.nodes[3]
    job = slurm.sbatch("sleep 600", f"--nodelist={busy}", "--exclusive")
    slurm.wait_running(job)
    try:
        with socket.socket() as stranger:
            port = next(port for port in range(25000, 29000, 3) if stranger.connect_ex(("127.0.0.1", port)))
        with socket.socket() as stranger:
            stranger.bind(("", port))
            stranger.listen()
            code, findings = doctor(
                shell, "--all-nodes", "--timeout", "32", f"cluster.launch.port_range=[{port},{port + 2}]"
            )
    finally:
        slurm.run("scancel", job)
    found = verdicts(findings)
    sick = [name for name in slurm.nodes if name in found and name != busy]
    assert (code, len(sick)) == (1, 1), found
    assert f"port {port}: Address already in use" in found[sick[0]][1]
    assert f"cannot connect to it (127.0.0.1 port {port}: timed out)" in found[sick[0]][1]
    assert found[busy] == ("not checked", "the job did not get it (Slurm says allocated)")
