from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.jobs.node_command import MARKER, NODE_RANK, STORE_FILE, Node
from sweep.core.settings.spec import LaunchSpec, Runner
from tests.fakes import submission_of

BASE = submission_of(
    tuple(AttemptKey(cell_id="89c35e1f02ab77d4", repeat=1, attempt=attempt) for attempt in (1, 2)),
    nodes=2,
    gpus_per_node=4,
)


def node(
    launch: LaunchSpec = BASE.launch,
    *,
    index: int = 0,
    node_rank: int = 0,
    job_id: str = "42_0",
    hosts: tuple[str, ...] = ("gpu1", "gpu2"),
    restart: int = 0,
    meeting_dir: str = "",
) -> Node:
    made = replace(BASE, launch=launch)
    return Node(
        submission=made,
        index=index,
        node_rank=node_rank,
        job_id=job_id,
        hosts=hosts,
        restart=restart,
        meeting_dir=meeting_dir,
    )


def words(which: Node) -> tuple[str, ...]:
    return which.command(python="py", cell_file="c.json", out_dir="out", log_dir="logs")


def option(which: Node, name: str) -> str | None:
    command = words(which)
    return command[command.index(name) + 1] if name in command else None


def environment(which: Node, environ: dict[str, str] | None = None, *, cores: int = 16) -> dict[str, str]:
    return which.environment(environ or {}, cores=cores, scratch_dir="/scratch")


def test_every_node_starts_torchrun_and_torchrun_the_entry() -> None:
    command = words(node())
    assert command[:4] == ("py", "-m", "sweep.launch.agent", "logs/exits.json")
    assert command[-6:] == ("-m", "trainer", "--cell", "c.json", "--out", "out")
    assert (option(node(), "--nnodes"), option(node(), "--nproc-per-node")) == ("2", "4")
    assert option(node(), "--max-restarts") == "0"


def test_all_nodes_meet_at_the_first_host_and_only_node_0_serves() -> None:
    first, second = node(), node(node_rank=1)
    assert option(first, "--rdzv-endpoint") == option(second, "--rdzv-endpoint") == f"gpu1:{first.port}"
    assert option(first, "--rdzv-id") == option(second, "--rdzv-id")
    assert [option(each, "--node-rank") for each in (first, second)] == ["0", "1"]


def test_nothing_that_others_can_reach_is_unpickled() -> None:
    assert option(node(), "--rdzv-backend") == "static"
    here = node(meeting_dir="/tmp/private")
    assert option(here, "--rdzv-backend") == "c10d"
    assert option(here, "--rdzv-endpoint") == "/tmp/private/agents"
    assert str(option(here, "--rdzv-conf")).startswith("store_type=file,")


def test_ranks_of_one_machine_meet_over_a_file_and_listen_to_nobody_else() -> None:
    made = environment(node(meeting_dir="/tmp/private"))
    assert made[STORE_FILE] == "/tmp/private/ranks"
    assert made["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert (made["GLOO_SOCKET_IFNAME"], made["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")


def test_a_store_of_an_enclosing_job_is_not_taken_for_this_ones() -> None:
    assert STORE_FILE not in environment(node(), {STORE_FILE: "/tmp/other"})


def test_nodes_may_be_as_late_as_the_site_allows() -> None:
    assert option(node(LaunchSpec(join_timeout_s=90)), "--rdzv-conf") == "timeout=90"


def test_a_site_can_name_the_rendezvous_host() -> None:
    which = node(LaunchSpec(rendezvous_host="10.0.0.1"))
    assert str(option(which, "--rdzv-endpoint")).startswith("10.0.0.1:")


def test_the_port_is_in_the_range_and_differs_between_runs() -> None:
    runs = [node(job_id=f"{job}_0", index=index, restart=r) for job in range(40) for index in (0, 1) for r in (0, 1)]
    ports = [run.port for run in runs]
    assert all(20000 <= port <= 29999 for port in ports)
    assert len(set(ports)) > 155
    assert node(LaunchSpec(port_range=(25000, 25000))).port == 25000


def test_the_port_is_the_same_in_every_process_and_version() -> None:
    assert node().port == 22395


def test_a_direct_runner_starts_the_entry_once_a_node() -> None:
    which = node(LaunchSpec(runner=Runner.DIRECT, entry=("stub.py", "--fast")), node_rank=1)
    assert words(which) == ("py", "stub.py", "--fast", "--cell", "c.json", "--out", "out")
    made = environment(which)
    assert (made["NODE_RANK"], made["NNODES"]) == ("1", "2")


def test_jobs_see_the_snapshot_first_whatever_the_site_sets() -> None:
    made = environment(
        node(LaunchSpec(environment={"PYTHONPATH": "/site", "PYTHONSAFEPATH": ""})), {"PYTHONPATH": "/mine"}
    )
    assert made["PYTHONPATH"] == "/runs/weak/sources/abc:/site"
    assert made["PYTHONSAFEPATH"] == "1"
    assert (
        environment(node(), {"PYTHONPATH": "/mine:/runs/weak/sources/abc"})["PYTHONPATH"]
        == "/runs/weak/sources/abc:/mine"
    )


def test_what_an_enclosing_torchrun_left_is_gone_and_the_jobs_own_slurm_stays() -> None:
    left = {"MASTER_ADDR": "a", "RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x", "PET_NNODES": "9"}
    made = environment(node(), {**left, "SLURM_JOB_ID": "42", "SLURM_CONF": "/etc/slurm.conf", "HOME": "/home/me"})
    assert not set(left) & set(made)
    assert (made["SLURM_JOB_ID"], made["SLURM_CONF"], made["HOME"]) == ("42", "/etc/slurm.conf", "/home/me")


def test_the_sites_variables_win_over_inherited_ones() -> None:
    made = environment(node(LaunchSpec(environment={"NCCL_DEBUG": "WARN"})), {"NCCL_DEBUG": "INFO"})
    assert made["NCCL_DEBUG"] == "WARN"


@pytest.mark.parametrize(
    ("hosts", "cores", "expected"),
    [(("a", "b"), 16, "4"), (("a", "b"), 3, "1"), (("127.0.0.1", "127.0.0.1"), 16, "2")],
)
def test_threads_are_the_cores_shared_among_the_ranks_of_the_machine(
    hosts: tuple[str, ...], cores: int, expected: str
) -> None:
    assert environment(node(hosts=hosts), cores=cores)["OMP_NUM_THREADS"] == expected


def test_threads_that_are_set_are_kept() -> None:
    assert environment(node(), {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    assert (
        environment(node(LaunchSpec(environment={"OMP_NUM_THREADS": "5"})), {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"]
        == "5"
    )


def test_ranks_can_tell_which_node_of_the_list_they_are_on() -> None:
    assert [environment(node(node_rank=rank))[NODE_RANK] for rank in (0, 1)] == ["0", "1"]


def test_every_attempt_has_a_mark_and_one_that_is_given_is_kept() -> None:
    assert environment(node())[MARKER] != environment(node(restart=1))[MARKER]
    assert environment(node(), {MARKER: "given"})[MARKER] == "given"


@pytest.mark.parametrize("hosts", [(), ("",), ("a",), ("a", ""), ("a", "b", "c")])
def test_a_wrong_number_of_hosts_is_an_error_and_never_localhost(hosts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="2 are needed"):
        node(hosts=hosts)


@pytest.mark.parametrize(("index", "node_rank"), [(2, 0), (-1, 0), (0, 2), (0, -1)])
def test_a_place_outside_the_job_is_an_error(index: int, node_rank: int) -> None:
    with pytest.raises(ValueError, match=r"none of the 2 tasks|not below 2"):
        node(index=index, node_rank=node_rank)


def test_compilers_keep_their_caches_in_a_folder_of_the_job_unless_the_user_names_one() -> None:
    made = environment(node(), {"TRITON_CACHE_DIR": "/home/me/triton"})
    assert made["TORCHINDUCTOR_CACHE_DIR"] == "/scratch/inductor"
    assert made["TRITON_CACHE_DIR"] == "/home/me/triton"
