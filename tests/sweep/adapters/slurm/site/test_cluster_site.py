"""The questions to a cluster about its limits, how often they are asked, and failures to answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.adapters.slurm.site.cluster_site import ASK_AGAIN_S, FRESH_S, SlurmSite
from sweep.adapters.slurm.site.read_config import read_out_of_service
from sweep.core.settings.site import Site
from sweep.core.settings.spec import SlurmSpec
from sweep.ports import SchedulerUnreachableError
from tests.sweep.adapters.recorded_site import AWAY, Clock, FakeCommands, ask, golden, site_of


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


def test_sacctmgr_is_asked_for_the_users_name_and_not_the_number() -> None:
    commands = FakeCommands()
    assert SlurmSite(SlurmSpec(), commands, "0", now=Clock()).site().free_tasks == 4  # type: ignore[arg-type]  # a fake
    nobody = SlurmSite(SlurmSpec(), commands, "4294967000", now=Clock()).site()  # type: ignore[arg-type]  # a fake
    assert (nobody.free_tasks, nobody.max_array_tasks) == (None, 5)


def test_excluded_nodes_are_not_usable_and_unknown_names_are_left_out() -> None:
    spec = SlurmSpec(exclude="node[2-3],/a/file", sbatch={"exclude": "nosuchnode", "comment": "kept"})
    site, _ = site_of(spec, **{"nodes-drained": "node1|idle|none\nnode2|idle|none\n"})
    assert site.fitting_spec() == spec, "not asked yet"
    found = site.site()
    assert (found.nodes, found.usable) == (frozenset({"node1", "node2"}), frozenset({"node1"}))
    assert [note.split()[4].strip(",") for note in found.notes] == ["node3", "nosuchnode"]
    assert site.fitting_spec() == SlurmSpec(exclude="node2,/a/file", sbatch={"comment": "kept"})
    assert site.cluster_name() == "private"


def test_with_a_reservation_only_its_nodes_are_usable() -> None:
    row = "ReservationName=mine StartTime=1 EndTime=2 Nodes=node1 Flags=SPEC_NODES\n"
    answers = {"nodes-drained": "", "reservations": row}
    assert ask(SlurmSpec(reservation="mine"), **answers).usable == {"node1"}
    assert ask(**answers).usable == {"node1", "node2"}


def test_nodes_out_of_service_are_named_with_slurms_reason() -> None:
    site, commands = site_of()
    assert site.unhealthy(["node1", "node2", "gone"]) == {"node2": "drained: GPU 3 | Xid 79"}
    assert site.unhealthy(["node1"]) == {}
    assert site.unhealthy([]) == {}
    assert len(commands.calls) == 2
    assert site_of(**{"nodes-drained": None})[0].unhealthy(["node2"]) == {}
    assert read_out_of_service(golden("nodes")) == {}


def test_a_value_that_cannot_be_asked_for_is_none_and_the_others_are_there() -> None:
    nothing = dict.fromkeys(("config", "partitions", "reservations", "user", "accounts", "qos", "queue", "everyone"))
    assert ask(**nothing) == Site()
    assert ask(user=None, accounts=None, qos=None) == replace(ask(), free_tasks=None, max_walltime_min=2880)
    assert ask(queue=None, everyone=None) == replace(ask(), free_tasks=None)
    garbage = dict.fromkeys(nothing, "\x00 what | = is\n|||||||\nthis? PartitionName=\n")
    ask(**garbage)


def test_an_unreachable_controller_is_asked_once_and_its_earlier_answers_still_count() -> None:
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
def test_no_command_follows_one_that_reaches_nobody(away: str, asked: list[str]) -> None:
    site, commands = site_of(**{away: AWAY})
    config = site.config()
    assert commands.calls == asked
    assert config.settings is not None, "what was heard before it counts"
    assert (config.partitions is None) == (away == "partitions")
    assert config.qos is None


def test_the_configuration_is_asked_for_every_ten_minutes_and_the_queue_each_time() -> None:
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


def test_a_part_that_could_not_be_asked_for_stays_and_is_asked_for_again_soon() -> None:
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
