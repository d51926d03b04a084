"""The shipped grids, models, devices and clusters are what they say they are."""

import dataclasses
from pathlib import Path

import pytest

from sweep.config import available, load
from sweep.config.library import GROUPS, Library
from sweep.config.profiles import device, model
from sweep.core.cells.model_shape import FlopConvention, flops_per_token
from sweep.core.grids.grid import expand
from sweep.core.grids.series import is_baseline
from sweep.core.settings.spec import ClusterSpec, SchedulerKind

LIBRARY = Library.at(None)

# Points that the trainer of this version runs, and rejections by rule.
PAPER = {
    # 9 numbers of nodes.
    "weak_scaling": (9, {}),
    # 5 nodes x 4 tp x 3 pp = 60. Below 8 ways of tp x pp, 32 sequences do not reach all data ranks on 16 and 32 nodes.
    "strong_scaling": (41, {"batch_by_data_ranks": 10, "micro_batches_by_pp": 8, "auto_degree": 1}),
    # tp of 1 to 16 without pp, pp of 2 to 16 without tp.
    "model_parallel": (9, {}),
    # 4 models x 4 tp.
    "model_size": (16, {}),
    # 6 lengths, the two longest with cp.
    "context_length": (6, {}),
}
LAPTOP = {
    "weak_scaling": (3, {}),
    # 3 nodes x 2 tp x 2 pp = 12. Four of them need more ranks than there are.
    "strong_scaling": (8, {"auto_degree": 4}),
    # tp and cp of 1 and 2, cp of 4, pp of 2 with and without tp or cp, another schedule, pp of 4.
    "model_parallel": (10, {}),
    # 3 models x 2 tp.
    "model_size": (6, {}),
    # 4 lengths, the longest with cp.
    "context_length": (4, {}),
}


def test_no_shipped_grid_is_left_out_here():
    assert set(PAPER) == set(LAPTOP) == set(available("grid"))


@pytest.mark.parametrize(("cluster", "expected"), [("slurm", PAPER), ("local", LAPTOP)])
@pytest.mark.parametrize("grid", sorted(PAPER))
def test_a_shipped_grid_expands_to_the_expected_cells_and_rejections(grid, cluster, expected):
    expansion = expand(load([f"+grid={grid}", f"cluster={cluster}"]).grid)
    assert (len(expansion.points), expansion.rejected_by_rule()) == expected[grid]


@pytest.mark.parametrize("cluster", ["slurm", "local"])
@pytest.mark.parametrize("grid", sorted(PAPER))
def test_a_shipped_grids_baseline_is_a_cell_that_runs(grid, cluster):
    spec = load([f"+grid={grid}", f"cluster={cluster}"])
    assert any(is_baseline(point.axes, spec.series) for point in expand(spec.grid).points)


def test_the_papers_weak_scaling_keeps_two_sequences_of_4096_tokens_on_1_to_256_nodes_of_8():
    expansion = expand(load(["+grid=weak_scaling", "cluster=slurm"]).grid)
    cells = [expansion.cells[point.cell_id] for point in expansion.points]
    assert [cell.gpus for cell in cells] == [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    assert {(cell.sequences_per_gpu, cell.seq_len, cell.model.name) for cell in cells} == {(2, 4096, "llama2_7b")}
    assert all(cell.parallelism.dp_shard == cell.gpus for cell in cells)


def test_the_papers_strong_scaling_keeps_a_global_batch_of_32_up_to_32_nodes():
    spec = load(["+grid=strong_scaling", "cluster=slurm"])
    assert spec.grid.axes["nodes"] == (2, 4, 8, 16, 32)
    assert spec.grid.axes["global_batch"] == (32,)
    assert (spec.series.kind, spec.series.envelope) == ("strong", "best")


def test_the_demonstration_runs_three_cells_of_few_steps_with_ten_of_them_as_warm_up():
    expansion = expand(load(["+grid=weak_scaling", "cluster=local"]).grid)
    assert [cell.gpus for cell in expansion.cells.values()] == [1, 2, 4]
    assert {cell.trainer.warmup_steps for cell in expansion.cells.values()} == {10}
    assert {cell.trainer.threads_per_rank for cell in expansion.cells.values()} == {1}
    assert all(30 <= cell.trainer.steps - cell.trainer.warmup_steps <= 60 for cell in expansion.cells.values())


PUBLISHED = {
    "llama2_1b": 1_345_423_360,  # Sheared-LLaMA 1.3B
    "tinyllama_1b": 1_100_048_384,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
}


@pytest.mark.parametrize(("name", "n_params"), PUBLISHED.items())
def test_a_model_has_its_published_number_of_parameters(name, n_params):
    assert model(LIBRARY, name).n_params == n_params
    assert f"{n_params:,}" in available("model")[name]


def test_every_model_that_is_not_for_debugging_is_checked_against_a_published_count():
    assert {name for name in available("model") if not name.startswith("debug_")} == set(PUBLISHED)


@pytest.mark.parametrize(("name", "millions"), [("debug_1m", 1), ("debug_3m", 3), ("debug_8m", 8), ("debug_30m", 30)])
def test_a_debug_model_is_as_small_as_its_name_says(name, millions):
    assert model(LIBRARY, name).n_params == pytest.approx(millions * 1e6, rel=0.1)


def test_7b_costs_the_papers_46_gflop_a_token_under_palm_full():
    flops = flops_per_token(model(LIBRARY, "llama2_7b"), 4096, FlopConvention.PALM_FULL)
    assert flops / 1e9 == pytest.approx(46.1, abs=0.05)


# What torch.cuda.get_device_name says, and the one profile that it belongs to.
DRIVER_NAMES = {
    "Tesla V100-SXM2-16GB": "v100-16gb-sxm",
    "Tesla V100-SXM2-32GB": "v100-32gb-sxm",
    "Tesla V100-SXM3-32GB": "v100-32gb-sxm",
    "Tesla V100-PCIE-32GB": None,
    "NVIDIA A100-SXM4-40GB": "a100-40gb-sxm",
    "A100-SXM4-40GB": "a100-40gb-sxm",
    "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm",
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb": None,
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "NVIDIA H100 80GB HBM3": "h100-80gb-sxm",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
    "NVIDIA H100 PCIe": "h100-80gb-pcie",
    "NVIDIA H100 NVL": "h100-94gb-nvl",
    "NVIDIA H200": "h200-141gb-sxm",
    "NVIDIA H200 NVL": "h200-141gb-nvl",
    "NVIDIA GH200 480GB": None,
    "NVIDIA B200": "b200-180gb",
    "NVIDIA GB200": None,
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI300A": None,
    "NVIDIA GeForce RTX 4090": None,
}


@pytest.mark.parametrize(("reported", "expected"), DRIVER_NAMES.items())
def test_a_drivers_name_belongs_to_one_profile_or_none(reported, expected):
    gpus = [device(LIBRARY, name) for name in available("hardware") if name != "cpu"]
    matching = [profile.name for profile in gpus if profile.is_matched_by(reported)]
    assert matching == ([expected] if expected else [])


def test_every_gpu_profile_says_what_it_matches_and_where_its_peaks_are_from():
    for name in available("hardware"):
        profile = device(LIBRARY, name)
        assert name == "cpu" or (profile.match and profile.peak_tflops and profile.source and profile.memory_gib)
        assert (profile.compute_capability is None) == (name == "cpu")


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("a100-80gb-sxm", 312),
        ("h100-80gb-sxm", 989),
        ("h100-80gb-pcie", 756),
        ("h200-141gb-sxm", 989),
        ("b200-180gb", 2250),
        ("mi300x", 1307),
    ],
)
def test_a_gpus_dense_16_bit_peak_is_the_published_one(name, peak):
    assert device(LIBRARY, name).peak_tflops["bf16"] == device(LIBRARY, name).peak_tflops["fp16"] == peak


def test_a_v100_has_no_bf16_peak_and_a_cpu_none_at_all():
    assert device(LIBRARY, "v100-32gb-sxm").peak_tflops["fp16"] == 125
    assert "bf16" not in device(LIBRARY, "v100-32gb-sxm").peak_tflops
    assert device(LIBRARY, "cpu").peak_for("bf16", "any name") is None


@pytest.mark.parametrize("group", GROUPS)
def test_every_shipped_file_has_a_line_that_describes_it(group):
    assert all(available(group).values())


@pytest.mark.parametrize("cluster", sorted(available("cluster")))
def test_every_shipped_cluster_can_be_loaded(cluster):
    spec = load(["+grid=weak_scaling", f"cluster={cluster}"])
    assert spec.cluster.name == cluster
    assert spec.run_dir == f"runs/weak_scaling-{cluster}"


def test_the_example_site_explains_every_key_that_a_cluster_has():
    def keys(cls, found):
        for item in dataclasses.fields(cls):
            found.add(item.name)
            default = item.default_factory() if callable(item.default_factory) else None
            if dataclasses.is_dataclass(default):
                keys(type(default), found)
        return found

    text = (LIBRARY.shipped / "cluster" / "example_site.yaml").read_text()
    missing = [key for key in keys(ClusterSpec, set()) if f"{key}:" not in text]
    assert missing == ["max_concurrent_cells"]  # of a local cluster only


def test_the_private_slurm_trains_on_the_cpu_behind_a_gres_request():
    cluster = load(["+grid=weak_scaling", "cluster=private_slurm"]).cluster
    assert (cluster.scheduler, cluster.device, cluster.scale) == (SchedulerKind.SLURM, "cpu", "laptop")
    assert (cluster.slurm.gpu_flag, cluster.gpus_per_node) == ("gres", 1)
    assert cluster.launch.rendezvous_host == "127.0.0.1"


def test_the_trainer_file_states_the_defaults_so_that_they_are_no_axes():
    spec = load(["+grid=weak_scaling", "cluster=slurm"])
    assert not [name for name in spec.grid.axes if name.startswith("trainer.")]


def test_conf_lies_in_the_checkout_or_in_the_installed_package():
    assert LIBRARY.shipped.name == "conf"
    assert (Path(LIBRARY.shipped) / "config.yaml").is_file()
