"""The adapters that a cluster's scheduler stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from sweep.adapters.files.run_directory import RunDir
from sweep.cli.verbs.doctor_cluster import ClusterChecks
from sweep.cli.wiring import cluster_for
from sweep.core.cells.device import Device
from sweep.core.settings.spec import ClusterSpec

CLUSTER = ClusterSpec(name="site", scheduler=cast("Any", "pbs"), scale="laptop", gpus_per_node=1, device="cpu")


def test_a_scheduler_without_adapters_is_an_error_and_not_this_machine(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="pbs"):
        cluster_for(CLUSTER, RunDir(tmp_path))
    device = Device(name="cpu", type="cpu")
    checks = ClusterChecks(cluster=CLUSTER, device=device, kinds=(), scratch=tmp_path, with_job=False, timeout_s=1.0)
    with pytest.raises(AssertionError, match="pbs"):
        checks.checks()
