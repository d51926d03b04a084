"""The reading of what scontrol, sinfo and sacctmgr print."""

from __future__ import annotations

import pytest

from sweep.adapters.slurm.site.read_config import (
    parse_minutes,
    read_out_of_service,
    read_partitions,
    read_reservations,
    read_settings,
)
from tests.sweep.adapters.recorded_site import golden


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
    assert read_settings(golden("config"))["SLURM_VERSION"] == "22.05.8"


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
    assert read_out_of_service(f"n1|{state}|none") == ({"n1": state} if is_bad else {})


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        *(("30", 30), ("30:15", 30), ("12:30:00", 750), ("1-00:00:00", 1440), ("2-12", 3600), ("1-01:30", 1530)),
        *((word, None) for word in ("UNLIMITED", "INFINITE", "NONE", "", "Partition_Limit", "-1")),
    ],
)
def test_slurms_times_in_minutes(text: str, minutes: int | None) -> None:
    assert parse_minutes(text) == minutes
