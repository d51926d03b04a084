"""What a cluster allows, read from recorded answers: which limit counts, how much of it is left, what never passes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sweep.adapters.slurm_commands import SlurmCommands
from sweep.adapters.slurm_limits import Asked, asked_of, submit_limits
from sweep.adapters.slurm_site import ASK_AGAIN_S, FRESH_S, HOPELESS, SlurmSite, is_hopeless
from sweep.adapters.slurm_site_text import (
    parse_minutes,
    read_config,
    read_partitions,
    read_reservations,
    read_unhealthy,
)
from sweep.adapters.slurm_submission import LaunchExecutor
from sweep.core.attempt import AttemptKey, JobReport, Phase
from sweep.core.site import Site
from sweep.core.spec import GpuFlag, LaunchSpec, SlurmSpec
from sweep.core.submission import Submission
from sweep.ports import SchedulerError, SchedulerUnreachableError

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm"
NOW = 1795972932.0
AWAY = "Unable to contact slurm controller (connect failure)"


def golden(name: str) -> str:
    return (GOLDEN / f"site-{name}.txt").read_text()


def user_rows(**changes: str) -> str:
    """The recorded row of the default account with other limits."""
    values = {
        "qos": "high,low,normal",
        "default": "normal",
        "submit": "9",
        "wall": "12:00:00",
        "group": "",
        "job": "",
        **changes,
    }
    return "sweep|private|sweep||{qos}|{default}|{submit}|{wall}|{group}|{job}\n".format(**values)


@dataclass
class FakeCommands:
    """Answers by what is asked; None where asking fails, AWAY where nobody is there to answer."""

    answers: dict[str, str | None] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def ask(self, command: list[str]) -> str:
        key = self._key(command)
        self.calls.append(key)
        default = golden(key.replace("everyone", "queue"))
        answer = self.answers.get(key, default)
        if answer is None:
            raise SchedulerError("no")
        if answer is AWAY:
            raise SchedulerUnreachableError(f"{command[0]} failed: {AWAY}")
        return answer

    def _key(self, command: list[str]) -> str:
        words = " ".join(command)
        keys = {
            "scontrol show config": "config",
            "scontrol -o show partition": "partitions",
            "scontrol -o show reservation": "reservations",
            "sacctmgr -n -P show user where name=root": "user",
            "sacctmgr -n -P show assoc": "accounts",
            "sacctmgr -n -P show qos": "qos",
            "squeue --array -h -u": "queue",
            "squeue --array -h -o": "everyone",
            "sinfo": "nodes-drained",
        }
        return next(name for beginning, name in keys.items() if words.startswith(beginning))


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> float:
        return self.time


def site_of(
    spec: SlurmSpec | None = None, *, clock: Clock | None = None, **answers: str | None
) -> tuple[SlurmSite, FakeCommands]:
    commands = FakeCommands(answers=answers)
    return SlurmSite(spec or SlurmSpec(), commands, "root", now=clock or Clock()), commands  # type: ignore[arg-type]  # a fake


def ask(spec: SlurmSpec | None = None, **answers: str | None) -> Site:
    return site_of(spec, **answers)[0].site()


# --- the recorded cluster


def test_the_recorded_cluster() -> None:
    """MaxArraySize 5; 9 jobs in the account, 5 of them taken; the shorter of 2 days and 12 hours; 5 days to go."""
    assert ask() == Site(
        max_array_tasks=5,
        free_tasks=4,
        max_walltime_min=720,
        nodes=frozenset({"node1", "node2"}),
        usable=frozenset({"node1"}),
        maintenance_at=1796404802.0,
    )


def test_a_user_is_asked_about_by_name_although_he_is_known_by_number() -> None:
    commands = FakeCommands()
    assert SlurmSite(SlurmSpec(), commands, "0", now=Clock()).site().free_tasks == 4  # type: ignore[arg-type]  # a fake
    nobody = SlurmSite(SlurmSpec(), commands, "4294967000", now=Clock()).site()  # type: ignore[arg-type]  # a fake
    assert (nobody.free_tasks, nobody.max_array_tasks) == (None, 5)


def test_nodes_that_the_settings_exclude_are_not_counted_on_and_unknown_names_are_left_out() -> None:
    spec = SlurmSpec(exclude="node[2-3],/a/file", sbatch={"exclude": "nosuchnode", "comment": "kept"})
    site, _ = site_of(spec, **{"nodes-drained": "node1|idle|none\nnode2|idle|none\n"})
    assert site.fitting_spec() == spec, "not asked yet"
    found = site.site()
    assert (found.nodes, found.usable) == (frozenset({"node1", "node2"}), frozenset({"node1"}))
    assert [note.split()[4].strip(",") for note in found.notes] == ["node3", "nosuchnode"]
    assert site.fitting_spec() == SlurmSpec(exclude="node2,/a/file", sbatch={"comment": "kept"})
    assert site.cluster_name() == "private"


def test_of_a_reservation_only_its_nodes_are_counted_on() -> None:
    row = "ReservationName=mine StartTime=1 EndTime=2 Nodes=node1 Flags=SPEC_NODES\n"
    answers = {"nodes-drained": "", "reservations": row}
    assert ask(SlurmSpec(reservation="mine"), **answers).usable == {"node1"}
    assert ask(**answers).usable == {"node1", "node2"}


# --- limits on the size of a job


def limits_of(spec: SlurmSpec | None = None, **answers: str | None) -> dict[str, tuple[int | None, int | None]]:
    return {limit.name: (limit.nodes, limit.gpus) for limit in ask(spec, **answers).size_limits}


def test_what_no_single_job_may_exceed_is_known_in_nodes_and_gpus() -> None:
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


# --- limits on submitted jobs


def test_the_jobs_own_qos_comes_before_the_association() -> None:
    """Tried with Slurm 22.05: MaxSubmitJobsPerUser=5 of the QOS lets in five, whatever the association says."""
    assert ask(SlurmSpec(qos="low")).free_tasks == 0
    queue = "low|sweep|debug\n" * 2 + "normal|sweep|debug\n" * 30
    assert ask(SlurmSpec(qos="low"), queue=queue).free_tasks == 1
    assert ask(SlurmSpec(qos="low"), queue=queue, user=user_rows(submit="2")).free_tasks == 1


def test_the_partitions_qos_comes_before_the_jobs() -> None:
    assert ask(SlurmSpec(partition="long", qos="low")).free_tasks == 7 - 2


def test_unless_the_jobs_qos_says_that_it_goes_first() -> None:
    assert ask(SlurmSpec(partition="long", qos="high")).free_tasks == 5 - 2


def test_jobs_count_against_a_partitions_qos_by_their_partition_and_by_their_qos() -> None:
    queue = "high|sweep|long\nhigh|sweep|debug,long\npartq|sweep|debug\nhigh|sweep|debug\n"
    assert ask(SlurmSpec(partition="long", qos="low"), queue=queue).free_tasks == 7 - 3


def test_what_an_account_may_have_counts_everybodys_jobs_in_it() -> None:
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


def test_accounts_that_are_each_others_parents_end_too() -> None:
    assert (
        ask(accounts="private|sweep|b|7|\nprivate|b|sweep||\n", user=user_rows(submit=""), everyone="").free_tasks == 7
    )


def test_more_in_the_queue_than_is_allowed_leaves_none() -> None:
    assert ask(queue="normal|sweep|debug\n" * 20).free_tasks == 0


def test_without_enforcement_limits_are_only_words_and_the_database_is_not_asked() -> None:
    config = golden("config").replace("associations,limits,qos", "associations")
    site, commands = site_of(config=config)
    assert site.site() == replace(ask(), free_tasks=None, max_walltime_min=2880)
    assert set(commands.calls) == {"config", "partitions", "reservations", "nodes-drained"}


def test_without_a_limit_nothing_is_counted() -> None:
    site, commands = site_of(user=user_rows(submit=""), accounts="private|sweep|root||\n")
    assert site.site().free_tasks is None
    assert not {"queue", "everyone"} & set(commands.calls)


def test_the_account_that_is_asked_for_is_the_one_that_counts() -> None:
    asked = SlurmSpec(account="root")
    assert ask(asked, user=golden("user").replace("normal||", "normal|2|")).free_tasks == 1
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
    facts = site_of(qos=golden("qos"))[0].facts()
    assert [qos.name for qos in asked_of(SlurmSpec(), facts).qos] == ["normal"]
    for rows, expected in ((user_rows(default="", qos="low"), ["low"]), (user_rows(default=""), [])):
        facts = site_of(user=rows)[0].facts()
        assert [qos.name for qos in asked_of(SlurmSpec(), facts).qos] == expected


def test_what_is_not_known_asks_for_nothing() -> None:
    facts = site_of()[0].facts()
    asked = asked_of(SlurmSpec(partition="nope", account="nope", qos="nope"), facts)
    assert asked == Asked()
    assert submit_limits(asked, facts) == []
    assert asked.nodes == frozenset()


# --- walltime, arrays, nodes, maintenance


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


def test_a_qos_can_free_a_job_from_the_partitions_walltime() -> None:
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
def test_how_many_tasks_an_array_may_have(config: str, tasks: int | None) -> None:
    assert ask(config=config).max_array_tasks == tasks


def test_nodes_are_those_of_the_partition() -> None:
    assert ask(SlurmSpec(partition="long")).nodes == {"node2"}
    assert ask(SlurmSpec(partition="nope")).nodes == frozenset()


def test_maintenance_is_what_leaves_the_partition_no_node_and_has_not_begun() -> None:
    long = SlurmSpec(partition="long")
    node2 = golden("reservations").replace("Nodes=node1 ", "Nodes=node2 ")
    assert ask(long, reservations=node2).maintenance_at == 1796145602.0
    assert ask(reservations=node2).maintenance_at == 1796404802.0, "node1 stays"
    assert ask(replace(long, reservation="maint"), reservations=node2).maintenance_at == 1796404802.0
    begun = node2.replace("StartTime=1796145602", f"StartTime={int(NOW) - 60}")
    assert ask(long, reservations=begun).maintenance_at == 1796404802.0
    assert ask(reservations="No reservations in the system\n").maintenance_at is None


def test_a_reservation_that_is_no_maintenance_shortens_nothing() -> None:
    only = [line for line in golden("reservations").splitlines() if "=mine" in line]
    assert ask(SlurmSpec(partition="long"), reservations=only[0].replace("node2", "node[1-2]")).maintenance_at is None


# --- what cannot be asked, and how often


def test_what_cannot_be_asked_is_none_and_the_rest_is_there() -> None:
    nothing = dict.fromkeys(("config", "partitions", "reservations", "user", "accounts", "qos", "queue", "everyone"))
    assert ask(**nothing) == Site()
    assert ask(user=None, accounts=None, qos=None) == replace(ask(), free_tasks=None, max_walltime_min=2880)
    assert ask(queue=None, everyone=None) == replace(ask(), free_tasks=None)
    garbage = dict.fromkeys(nothing, "\x00 what | = is\n|||||||\nthis? PartitionName=\n")
    ask(**garbage)


def test_a_controller_that_is_away_is_asked_once_and_what_it_said_before_still_counts() -> None:
    clock = Clock()
    site, commands = site_of(clock=clock, config=AWAY)
    with pytest.raises(SchedulerUnreachableError) as raised:
        site.site()
    assert commands.calls == ["config"]
    for part in ("asked what the cluster allows", AWAY, "Nothing was submitted", "scontrol ping", "SLURM_CONF"):
        assert part in str(raised.value), "what was asked, what is true, what to change"
    commands.answers = {}
    clock.time += ASK_AGAIN_S
    before = site.site()
    commands.answers = {"config": AWAY}
    commands.calls.clear()
    clock.time += FRESH_S
    assert site.site() == before
    assert commands.calls == ["config", "queue", "everyone", "nodes-drained"]


@pytest.mark.parametrize(
    ("away", "asked"),
    [
        ("partitions", ["config", "partitions"]),
        ("reservations", ["config", "partitions", "reservations"]),
        ("user", ["config", "partitions", "reservations", "user"]),
    ],
)
def test_no_further_question_is_put_once_nobody_is_there_to_answer(away: str, asked: list[str]) -> None:
    site, commands = site_of(**{away: AWAY})
    facts = site.facts()
    assert commands.calls == asked
    assert facts.config is not None, "what was heard before it counts"
    assert (facts.partitions is None) == (away == "partitions")
    assert facts.qos is None


def test_settings_are_asked_for_once_in_ten_minutes_and_the_queue_each_time() -> None:
    clock = Clock()
    site, commands = site_of(clock=clock)
    site.site()
    clock.time += FRESH_S - 1
    site.site()
    assert commands.calls.count("config") == commands.calls.count("qos") == 1
    assert commands.calls.count("queue") == 2
    clock.time += 1
    site.site()
    assert commands.calls.count("config") == commands.calls.count("qos") == 2


def test_what_could_not_be_asked_is_asked_again_soon_and_stays_as_it_was_meanwhile() -> None:
    clock = Clock()
    site, commands = site_of(clock=clock)
    before = site.site()
    commands.answers = {"qos": None, "partitions": None}
    clock.time += FRESH_S
    assert site.site() == before
    clock.time += ASK_AGAIN_S - 1
    site.site()
    assert commands.calls.count("partitions") == 2
    commands.answers = {"partitions": golden("partitions").replace("node[1-2]", "node[1-3]")}
    clock.time += 1
    assert site.site().nodes == {"node1", "node2", "node3"}


# --- nodes out of service


def test_nodes_out_of_service_are_named_with_slurms_reason() -> None:
    site, commands = site_of()
    assert site.unhealthy(["node1", "node2", "gone"]) == {"node2": "drained: GPU 3 | Xid 79"}
    assert site.unhealthy(["node1"]) == {}
    assert site.unhealthy([]) == {}
    assert len(commands.calls) == 2
    assert site_of(**{"nodes-drained": None})[0].unhealthy(["node2"]) == {}
    assert read_unhealthy(golden("nodes")) == {}


@pytest.mark.parametrize(
    ("state", "is_bad"),
    [
        *((word, True) for word in ("down", "down*", "idle*", "drained", "draining", "draining@", "drained~", "fail")),
        *((word, True) for word in ("failing", "error", "inval", "blocked", "allocated*")),
        *((word, False) for word in ("idle", "mixed", "allocated", "completing", "planned", "maint", "reserved", "")),
        *((word, False) for word in ("idle~", "down~", "powering_up#", "down#")),
    ],
)
def test_states_of_nodes(state: str, is_bad: bool) -> None:
    assert read_unhealthy(f"n1|{state}|none") == ({"n1": state} if is_bad else {})


# --- reasons that never pass


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionTimeLimit",
        "PartitionNodeLimit",
        "BadConstraints",
        "AccountNotAllowed",
        "Job's account not permitted to use this partition (debug allows other not sweep)",
        "Job's QOS not permitted to use this partition (debug allows normal not high)",
        "InvalidAccount",
        "InvalidQOS",
        "QOSMaxWallDurationPerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxNodePerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSMaxGRESMinutesPerJob",
        "AssocMaxCpuPerNode",
        "QOSMinCpuNotSatisfied",
        "QOSMinGRES",
        "MaxMemPerLimit",
        "ReservationDeleted",
        "DependencyNeverSatisfied",
    ],
)
def test_a_job_that_waits_for_this_waits_for_nothing(reason: str) -> None:
    assert is_hopeless(JobReport(state="PENDING", phase=Phase.PENDING, reason=reason))
    assert not is_hopeless(JobReport(state="RUNNING", phase=Phase.RUNNING, reason=reason))


@pytest.mark.parametrize(
    "reason",
    [
        *("", "None", "Priority", "Resources", "Reservation", "BeginTime", "Dependency", "JobArrayTaskLimit"),
        *("QOSMaxJobsPerUserLimit", "QOSMaxGRESPerUser", "QOSMaxCpuPerUserLimit", "QOSGrpGRES", "AssocGrpCpuLimit"),
        *("QOSGrpCPUMinutesLimit", "AssocMaxJobsLimit", "MaxGRESPerAccount", "QOSMaxSubmitJobPerUserLimit"),
        *("PartitionDown", "PartitionInactive", "JobHeldUser", "JobHeldAdmin", "Licenses", "NodeDown"),
        "ReqNodeNotAvail, UnavailableNodes:node2",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        *("PartitionTimeLimitSoon", "SomethingNew", "not InvalidQOS"),
    ],
)
def test_a_job_that_waits_for_this_may_start_yet(reason: str) -> None:
    assert not is_hopeless(JobReport(state="PENDING", phase=Phase.PENDING, reason=reason))


def test_every_hopeless_reason_is_explained() -> None:
    assert all(pattern and meaning for pattern, meaning in HOPELESS)


# --- nodes that a submission keeps away from


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
    tmp_path: Path, spec: SlurmSpec, avoided: tuple[str, ...], expected: list[str]
) -> None:
    submission = Submission(
        name="x",
        run_dir=str(tmp_path),
        created_at=NOW,
        tasks=(AttemptKey(cell_id="0", repeat=1, attempt=1),),
        nodes=1,
        gpus_per_node=1,
        device_type="cpu",
        walltime_min=5,
        sources_dir="/s",
        sources_hash="0",
        launch=LaunchSpec(),
        exclude=avoided,
    )
    commands = SlurmCommands({"PATH": str(tmp_path)})
    text = LaunchExecutor(submission, spec, python="python", commands=commands)._make_submission_file_text("true", "x")
    assert [line.removeprefix("#SBATCH ") for line in text.splitlines() if "exclude" in line] == expected


# --- reading


def test_reading_partitions_and_reservations() -> None:
    debug, long = read_partitions(golden("partitions"))
    assert (debug.name, debug.is_default, debug.max_walltime_min, debug.qos, debug.is_up) == (
        "debug",
        True,
        2880,
        "",
        True,
    )
    assert (long.name, long.is_default, long.max_walltime_min, long.qos) == ("long", False, None, "partq")
    assert [item.name for item in read_reservations(golden("reservations"))] == ["maint", "mine", "all_maint"]
    assert read_config(golden("config"))["SLURM_VERSION"] == "22.05.8"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        *(("30", 30), ("30:15", 30), ("12:30:00", 750), ("1-00:00:00", 1440), ("2-12", 3600), ("1-01:30", 1530)),
        *((word, None) for word in ("UNLIMITED", "INFINITE", "NONE", "", "Partition_Limit", "-1")),
    ],
)
def test_slurms_times_in_minutes(text: str, minutes: int | None) -> None:
    assert parse_minutes(text) == minutes
