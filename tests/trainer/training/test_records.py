"""From the ranks' facts to the records."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from sweep.core.records.layout import RESULT_FILE, STEPS_FILE
from sweep.core.records.progress import Step
from sweep.core.records.result import Result
from sweep.files import write_atomically
from tests.trainer.cells import cell, cell_file
from trainer.device.telemetry import ENERGY_SOURCE, WindowTelemetry
from trainer.device.versions import fingerprint, fingerprint_fields, hash_sources, source_hash
from trainer.training import records
from trainer.training.loop import Measurements
from trainer.training.records import RankFacts, RunFacts, build_result, merge_steps, node_order

FILE = cell_file(cell(gpus=2, trainer={"steps": 3, "warmup_steps": 1}))
VERSIONS = {"torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.3", "driver": "570.86.15", "python": "3.12.1"}


def facts(**changes: object) -> RankFacts:
    made = RankFacts(
        host="node1",
        node_rank=0,
        places=("gpu0",),
        device_name="NVIDIA H100",
        measurements=measurements(times=[9.0, 1.0, 2.0], losses=[3.0, 2.0, 1.0], window_time_s=3.0),
        telemetry=WindowTelemetry(energy_j=100.0, throttle_reasons=(), throttled=False),
        peak_memory_bytes=10,
        peak_reserved_bytes=20,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]  # fields of the facts


def run_facts() -> RunFacts:
    covered = fingerprint_fields(VERSIONS, device_name="NVIDIA H100", sources="abc", data=None, uses_torchao=False)
    return RunFacts(
        file=FILE,
        restart=2,
        started_at=10.0,
        ended_at=20.0,
        n_params=FILE.cell.model.n_params,
        versions=VERSIONS,
        fingerprint_fields=covered,
        environment={"NCCL_DEBUG": "WARN"},
        extra={"threads_per_rank": 1},
    )


def result_of(*ranks: RankFacts) -> Result:
    return build_result(run_facts(), ranks, merge_steps(FILE, ranks))


def measurements(*, times: list[float], losses: list[float] | None, window_time_s: float) -> Measurements:
    return Measurements(step_times_s=times, losses=losses, grad_norms=[5.0, 4.0, 3.0], window_time_s=window_time_s)


def test_a_steps_time_is_that_of_the_slowest_rank_and_its_loss_the_mean() -> None:
    slow = facts(measurements=measurements(times=[1.0, 4.0, 1.5], losses=[5.0, 4.0, 2.0], window_time_s=5.5))
    steps = merge_steps(FILE, [facts(), slow])
    assert [step.step_time_s for step in steps] == [9.0, 4.0, 2.0]
    assert [step.loss for step in steps] == [4.0, 3.0, 1.5]
    assert [step.grad_norm for step in steps] == [5.0, 4.0, 3.0]
    assert [step.is_warmup for step in steps] == [True, False, False]
    assert {step.tokens for step in steps} == {8 * 32}
    assert result_of(facts(), slow).window_time_s == 5.5


def test_the_window_is_what_follows_warm_up() -> None:
    result = result_of(facts(), facts())
    assert (result.steps, result.warmup_steps, result.window_steps) == (3, 1, 2)
    assert result.window_tokens == 2 * 8 * 32
    assert result.restart == 2
    assert result.final_loss == 1.0


def test_energy_is_the_sum_over_ranks_and_unknown_if_one_is() -> None:
    known = result_of(facts(), facts())
    assert (known.window_energy_j, known.power_source) == (200.0, ENERGY_SOURCE)
    unknown = result_of(facts(), facts(telemetry=WindowTelemetry()))
    assert (unknown.window_energy_j, unknown.power_source) == (None, "")


def test_one_throttled_device_throttles_the_run_and_one_unknown_leaves_it_unknown() -> None:
    hot = facts(telemetry=WindowTelemetry(throttled=True, throttle_reasons=("hw_thermal_slowdown",)))
    unknown = facts(telemetry=WindowTelemetry())
    assert result_of(facts(), facts()).throttled is False
    assert result_of(facts(), unknown).throttled is None
    assert result_of(hot, unknown).throttled is True
    assert result_of(hot, facts()).throttle_reasons == ("hw_thermal_slowdown",)


def test_memory_is_the_largest_and_unknown_if_one_is() -> None:
    assert result_of(facts(), facts(peak_memory_bytes=30)).peak_memory_bytes == 30
    assert result_of(facts(), facts(peak_memory_bytes=None)).peak_memory_bytes is None


def test_hosts_are_in_the_order_of_nodes() -> None:
    assert result_of(facts(host="b", node_rank=1), facts(host="a", node_rank=0)).hosts == ("a", "b")


def test_the_order_of_ranks_over_nodes_is_kept() -> None:
    assert node_order([facts(node_rank=node) for node in (0, 0, 9, 9, 1, 1)]) == [0, 9, 1]


def test_more_ranks_than_devices_on_a_host_is_oversubscribed() -> None:
    assert not result_of(facts(), facts(places=("gpu1",))).oversubscribed
    assert result_of(facts(), facts()).oversubscribed
    assert not result_of(facts(), facts(host="node2", node_rank=1)).oversubscribed


def test_agents_that_share_a_host_share_its_cores() -> None:
    cores = ("cpu0", "cpu1")
    three = [facts(places=cores, node_rank=node) for node in range(3)]
    assert not result_of(*three[:2]).oversubscribed
    assert result_of(*three).oversubscribed


def test_different_devices_are_all_named() -> None:
    assert records.device_name([facts(), facts(device_name="NVIDIA A100")]) == "NVIDIA A100 + NVIDIA H100"


def test_a_loss_that_is_not_finite_is_unknown() -> None:
    diverged = facts(
        measurements=measurements(times=[1.0, 1.0, 1.0], losses=[1.0, math.inf, math.nan], window_time_s=2.0)
    )
    result = result_of(diverged)
    assert result.final_loss is None
    assert [Step.parse(step.render()).loss for step in merge_steps(FILE, [diverged])] == [1.0, None, None]


def test_the_result_is_written_last_and_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def noted(path: Path, text: str) -> None:
        written.append(path.name)
        write_atomically(path, text)

    monkeypatch.setattr(records, "write_atomically", noted)
    ranks = [facts(), facts(places=("gpu1",))]
    result = result_of(*ranks)
    records.write_records(tmp_path, merge_steps(FILE, ranks), result)
    assert written == [STEPS_FILE, RESULT_FILE]
    assert Result.parse((tmp_path / RESULT_FILE).read_text(), expected=FILE.key) == result
    assert {path.name for path in tmp_path.iterdir()} == {STEPS_FILE, RESULT_FILE}


def test_only_known_readings_are_kept_by_rank() -> None:
    assert records.readings([facts(telemetry=WindowTelemetry()), facts()]) == {
        "1": {"energy_j": 100.0, "throttle_reasons": (), "throttled": False}
    }


def test_the_fingerprint_covers_what_changes_a_number_and_no_more() -> None:
    def of(*, uses_torchao: bool = False, **changes: str) -> str:
        return fingerprint(
            fingerprint_fields(
                {**VERSIONS, **changes},
                device_name=changes.get("device_name", "H100"),
                sources=changes.get("sources", "abc"),
                data=changes.get("data"),
                uses_torchao=uses_torchao,
            )
        )

    assert len(of()) == 12
    assert of() == of(python="3.13.0") == of(torchao="0.19")
    assert of(uses_torchao=True) != of(uses_torchao=True, torchao="0.19")
    for changed in ("torch", "cuda", "nccl", "driver", "device_name", "sources", "data"):
        assert of(**{changed: "other"}) != of(), changed


def test_the_source_hash_follows_content_and_name(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\n")
    (folder / "notes.txt").write_text("one")
    before = hash_sources([folder])
    (folder / "notes.txt").write_text("two")
    assert hash_sources([folder]) == before
    (folder / "a.py").write_text("x = 2\n")
    changed = hash_sources([folder])
    (folder / "a.py").rename(folder / "b.py")
    assert len({before, changed, hash_sources([folder])}) == 3
    assert len(source_hash()) == 16


def test_pipeline_ranks_with_the_last_stage_give_the_loss() -> None:
    blind = facts(measurements=measurements(times=[1.0] * 3, losses=None, window_time_s=3.0))
    seeing = facts(measurements=measurements(times=[1.0] * 3, losses=[3.0, 2.0, 1.0], window_time_s=3.0))
    other = facts(measurements=measurements(times=[1.0] * 3, losses=[1.0, 1.0, 1.0], window_time_s=3.0))
    assert [step.loss for step in merge_steps(FILE, [blind, seeing])] == [3.0, 2.0, 1.0]
    assert [step.loss for step in merge_steps(FILE, [seeing, blind, other])] == [2.0, 1.5, 1.0]
