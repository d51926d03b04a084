"""The limits that apply to a job: on its size, walltime and nodes, and on the number of jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.adapters.slurm.site.limits import submit_limits
from sweep.adapters.slurm.site.request import Request, resolve_request
from sweep.core.settings.spec import GpuFlag, SlurmSpec
from tests.sweep.adapters.recorded_site import NOW, ask, golden, site_of, user_rows


def limits_of(spec: SlurmSpec | None = None, **answers: str | None) -> dict[str, tuple[int | None, int | None]]:
    return {limit.name: (limit.nodes, limit.gpus) for limit in ask(spec, **answers).size_limits}


def test_limits_on_a_single_job_are_given_in_nodes_and_gpus() -> None:
    rows = "high||||||cpu=64,gres/gpu=16,mem=1T,node=2|node=4||gres/gpu:h100=8\n"
    assert limits_of(SlurmSpec(qos="high", cpus_per_task=8), qos=rows) == {
        "GrpTRES node=2 of the QOS high": (2, None),
        "GrpTRES gres/gpu=16 of the QOS high": (None, 16),
        "GrpTRES cpu=64 of the QOS high": (8, None),
        "MaxTRES node=4 of the QOS high": (4, None),
    }
    asked_for_none = limits_of(SlurmSpec(qos="high", gpu_flag=GpuFlag.NONE), qos=rows)
    assert "GrpTRES gres/gpu=16 of the QOS high" not in asked_for_none


def test_the_associations_size_limits_count_where_no_qos_sets_one() -> None:
    accounts = "private|root|||\nprivate|dept|root||node=6\nprivate|sweep|dept||gres/gpu=8\n"
    user = user_rows(group="node=3", job="node=2")
    of_user = "of this user in the account sweep"
    assert limits_of(SlurmSpec(qos="normal"), user=user, accounts=accounts) == {
        f"GrpTRES node=3 {of_user}": (3, None),
        "GrpTRES node=6 of the account dept": (6, None),
        "GrpTRES gres/gpu=8 of the account sweep": (None, 8),
        f"MaxTRES node=2 {of_user}": (2, None),
    }
    qos = "normal||||||node=9|||\n"
    found = limits_of(SlurmSpec(qos="normal"), user=user, accounts=accounts, qos=qos)
    assert {name for name in found if "node" in name} == {
        "GrpTRES node=9 of the QOS normal",
        f"MaxTRES node=2 {of_user}",
    }
    assert limits_of(user=user, config=golden("config").replace("associations,limits,qos", "associations")) == {}


def test_the_jobs_own_qos_comes_before_the_association() -> None:
    """Tried with Slurm 22.05: MaxSubmitJobsPerUser=5 of the QOS lets in five, whatever the association says."""
    assert ask(SlurmSpec(qos="low")).free_tasks == 0
    queue = "low|sweep|debug\n" * 2 + "normal|sweep|debug\n" * 30
    assert ask(SlurmSpec(qos="low"), queue=queue).free_tasks == 1
    assert ask(SlurmSpec(qos="low"), queue=queue, user=user_rows(submit="2")).free_tasks == 1


def test_the_partitions_qos_comes_before_the_jobs() -> None:
    assert ask(SlurmSpec(partition="long", qos="low")).free_tasks == 7 - 2


def test_the_jobs_qos_comes_first_with_the_flag_over_part_qos() -> None:
    assert ask(SlurmSpec(partition="long", qos="high")).free_tasks == 5 - 2


def test_jobs_count_against_a_partitions_qos_by_their_partition_and_by_their_qos() -> None:
    queue = "high|sweep|long\nhigh|sweep|debug,long\npartq|sweep|debug\nhigh|sweep|debug\n"
    assert ask(SlurmSpec(partition="long", qos="low"), queue=queue).free_tasks == 7 - 3


def test_a_limit_of_an_account_counts_the_jobs_of_all_its_users() -> None:
    qos = "high||3|||||||\n"
    everyone = "high|sweep|debug\nhigh|other|debug\nlow|sweep|debug\n"
    assert ask(SlurmSpec(qos="high"), qos=qos, queue="", everyone=everyone).free_tasks == 2


def test_a_limit_on_the_account_within_a_qos_overrides_the_association_too() -> None:
    """Tried with Slurm 22.05: MaxSubmitJobsPerAccount=5, MaxSubmitJobs=2: five were taken."""
    assert ask(SlurmSpec(qos="high"), qos="high||5|||||||\n", user=user_rows(submit="2"), everyone="").free_tasks == 5


def test_a_group_limit_of_the_qos_overrides_that_of_the_account() -> None:
    """Tried with Slurm 22.05: GrpSubmitJobs=4 of the QOS and 2 of the account: four were taken."""
    accounts = "private|sweep|root|2|\n"
    values = {"accounts": accounts, "user": user_rows(submit=""), "everyone": "high|other|debug\n", "queue": ""}
    assert ask(SlurmSpec(qos="high"), qos="high|||4||||||\n", **values).free_tasks == 3
    assert ask(SlurmSpec(qos="high"), qos="high|||||||||\n", **values).free_tasks == 2


def test_a_group_limit_counts_the_accounts_below_and_the_tightest_of_those_above_is_taken() -> None:
    accounts = (
        "private|root||10|\nprivate|dept|root|6|\nprivate|sweep|dept||\nprivate|other|dept||\nelsewhere|sweep|root|1|\n"
    )
    everyone = "normal|other|debug\n" * 2 + "normal|sweep|debug\n" + "normal|root|debug\n" * 6
    assert ask(accounts=accounts, user=user_rows(submit=""), everyone=everyone).free_tasks == 1
    assert ask(accounts=accounts, user=user_rows(submit=""), everyone="normal|other|debug\n" * 5).free_tasks == 1


def test_accounts_that_are_each_others_parents_cause_no_endless_loop() -> None:
    assert (
        ask(accounts="private|sweep|b|7|\nprivate|b|sweep||\n", user=user_rows(submit=""), everyone="").free_tasks == 7
    )


def test_a_queue_above_the_limit_leaves_no_free_task() -> None:
    assert ask(queue="normal|sweep|debug\n" * 20).free_tasks == 0


def test_limits_that_are_not_enforced_do_not_count_and_the_database_is_not_asked() -> None:
    config = golden("config").replace("associations,limits,qos", "associations")
    site, commands = site_of(config=config)
    assert site.site() == replace(ask(), free_tasks=None, max_walltime_min=2880)
    assert set(commands.calls) == {"config", "partitions", "reservations", "nodes-drained"}


def test_without_a_limit_nothing_is_counted() -> None:
    site, commands = site_of(user=user_rows(submit=""), accounts="private|sweep|root||\n")
    assert site.site().free_tasks is None
    assert not {"queue", "everyone"} & set(commands.calls)


def test_the_limits_of_the_requested_account_count() -> None:
    request = SlurmSpec(account="root")
    assert ask(request, user=golden("user").replace("normal||", "normal|2|")).free_tasks == 1
    elsewhere = user_rows(submit="1").replace("private", "elsewhere")
    assert ask(user=elsewhere + user_rows()).free_tasks == 4, "another cluster's association is not ours"
    assert (
        ask(SlurmSpec(sbatch={"account": "root"}), user=golden("user").replace("normal||", "normal|2|")).free_tasks == 1
    )


def test_an_association_for_the_partition_comes_before_the_one_for_all() -> None:
    user = user_rows() + user_rows(submit="6").replace("|sweep||", "|sweep|debug|")
    assert ask(user=user, queue="").free_tasks == 6
    assert ask(SlurmSpec(partition="long"), user=user, qos="", queue="").free_tasks == 9


def test_a_job_that_asks_for_no_qos_gets_the_associations_default_or_its_only_one() -> None:
    config = site_of(qos=golden("qos"))[0].config()
    assert [qos.name for qos in resolve_request(SlurmSpec(), config).qos] == ["normal"]
    for rows, expected in ((user_rows(default="", qos="low"), ["low"]), (user_rows(default=""), [])):
        config = site_of(user=rows)[0].config()
        assert [qos.name for qos in resolve_request(SlurmSpec(), config).qos] == expected


def test_an_unknown_partition_account_or_qos_has_no_limits() -> None:
    config = site_of()[0].config()
    request = resolve_request(SlurmSpec(partition="nope", account="nope", qos="nope"), config)
    assert request == Request()
    assert submit_limits(request, config) == []
    assert request.nodes == frozenset()


@pytest.mark.parametrize(
    ("spec", "minutes"),
    [
        (SlurmSpec(), 720),
        (SlurmSpec(qos="low"), 30),
        (SlurmSpec(qos="high"), 1440),
        (SlurmSpec(account="root"), 2880),
        (SlurmSpec(account="root", partition="long"), None),
        (SlurmSpec(account="root", partition="long,debug"), 2880),
    ],
)
def test_the_longest_walltime(spec: SlurmSpec, minutes: int | None) -> None:
    assert ask(spec).max_walltime_min == minutes


def test_a_qos_can_lift_the_partitions_walltime() -> None:
    assert ask(SlurmSpec(qos="high"), qos="high||||7-00:00:00|PartitionTimeLimit||||\n").max_walltime_min == 7 * 1440


@pytest.mark.parametrize(
    ("config", "tasks"),
    [
        ("MaxArraySize            = 1001\n", 1001),
        ("MaxArraySize            = 0\n", 1),
        ("MaxArraySize            = 1001\nSchedulerParameters     = a=1,max_array_tasks=100\n", 100),
        ("ClusterName = x\n", None),
    ],
)
def test_the_largest_array(config: str, tasks: int | None) -> None:
    assert ask(config=config).max_array_tasks == tasks


def test_the_nodes_are_the_partitions() -> None:
    assert ask(SlurmSpec(partition="long")).nodes == {"node2"}
    assert ask(SlurmSpec(partition="nope")).nodes == frozenset()


def test_maintenance_counts_if_it_takes_every_node_and_has_not_begun() -> None:
    long = SlurmSpec(partition="long")
    node2 = golden("reservations").replace("Nodes=node1 ", "Nodes=node2 ")
    assert ask(long, reservations=node2).maintenance_at == 1796145602.0
    assert ask(reservations=node2).maintenance_at == 1796404802.0, "node1 stays"
    assert ask(replace(long, reservation="maint"), reservations=node2).maintenance_at == 1796404802.0
    begun = node2.replace("StartTime=1796145602", f"StartTime={int(NOW) - 60}")
    assert ask(long, reservations=begun).maintenance_at == 1796404802.0
    assert ask(reservations="No reservations in the system\n").maintenance_at is None


def test_a_reservation_without_the_flag_maint_is_no_maintenance() -> None:
    only = [line for line in golden("reservations").splitlines() if "=mine" in line]
    assert ask(SlurmSpec(partition="long"), reservations=only[0].replace("node2", "node[1-2]")).maintenance_at is None
