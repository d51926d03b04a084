"""The text of the job over all nodes, and what its nodes print, taken apart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sweep.adapters.doctor.every_node import END_LINE, answer, folder_of, job_text, outputs, read_nodes
from sweep.core.settings.spec import SlurmSpec
from sweep.launch.node_check import REPORT
from sweep.usecases.doctor.every_node import NodeInSlurm
from tests.fakes import submission_of

SRUN = """#!/bin/bash
# One step: plays the node that --nodelist names.
for word; do [[ $word != --nodelist=* ]] || export SLURMD_NODENAME=${word#*=}; done
while [[ $1 != bash ]]; do shift; done
exec "$@"
"""
SCONTROL = "#!/bin/bash\nprintf '%s\\n' n1 n2\n"
PYTHON = '#!/bin/bash\nprintf \'sweep: node report {"host": "%s", "is_whole": true}\\n\' $SLURMD_NODENAME\n'


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "python": PYTHON}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_each_node_has_a_step_of_its_own_and_a_set_up_line_that_fails_on_one_ends_no_other(stubs: Path) -> None:
    run_dir = stubs / "it's a run"
    submission = submission_of(name="doctor", run_dir=str(run_dir), nodes=2)
    folder_of(submission).mkdir(parents=True)
    (run_dir / "token").write_text("words")
    spec = SlurmSpec(setup=("X=1", "[ $SLURMD_NODENAME != n2 ]"), container=("env", "-u", "Y"))
    text = job_text(submission, spec, str(stubs / "python"), 5.0)
    environ = {"PATH": f"{stubs}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n[1-2]"}
    done = subprocess.run(["bash", "-c", text], env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    printed = outputs(folder_of(submission))
    assert printed.hosts == ("n1", "n2")
    assert printed.is_complete
    one, two = (printed.answers[host] for host in printed.hosts)
    assert one.report == {"host": "n1", "is_whole": True, "token_of_shell": "words"}
    assert two.failure is not None
    assert two.failure.reason.startswith("the set-up line `[ $SLURMD_NODENAME != n2 ]` ended with exit code 1")
    assert two.report == {"token_of_shell": "words"}


def test_before_the_job_has_begun_there_is_nothing_and_a_silent_node_is_waited_for(tmp_path: Path) -> None:
    assert outputs(tmp_path).hosts is None
    (tmp_path / "hosts").write_text("n1\nn2\n")
    (tmp_path / "node-n1.out").write_text(f"{END_LINE}\n")
    assert not outputs(tmp_path).is_complete
    (tmp_path / "node-n2.out").write_text(f"srun: error: n2: task 0: Exited with exit code 1\n{END_LINE}\n")
    assert outputs(tmp_path).is_complete


def test_of_several_reports_the_last_counts_and_a_cut_one_is_left_aside() -> None:
    first, second = ({"host": "n1", "torch": None}, {"host": "n1", "torch": "2.13"})
    lines = ["sweep: node token words", f"{REPORT}{json.dumps(first)}", "a note", f"{REPORT}{json.dumps(second)}"]
    found = answer("\n".join([*lines, f"{REPORT}{{cut"]))
    assert found.report == {"token_of_shell": "words", **second}
    assert (found.messages, found.is_over, found.is_whole) == (("a note",), False, False)


def test_slurms_nodes_are_read_with_state_reason_and_gpus() -> None:
    rows = [
        "n1|idle|gpu:8|none",
        "n2|drained|gpu:h100:8(S:0-1)|bad | fan",
        "n3|mixed|gpu:a100:4,gpu:t4:1,shard:8|none",
        "n4|idle|(null)|none",
    ]
    assert read_nodes("\n".join(rows)) == {
        "n1": NodeInSlurm(state="idle", out_of_service="", gpus=8),
        "n2": NodeInSlurm(state="drained", out_of_service="drained: bad | fan", gpus=8),
        "n3": NodeInSlurm(state="mixed", out_of_service="", gpus=5),
        "n4": NodeInSlurm(state="idle", out_of_service="", gpus=0),
    }
