"""From the words of a command line to a SweepSpec."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import sweep.config.library as library_module
from sweep.config import available, load
from sweep.config.compose import compose, parse
from sweep.config.keys import policy_keys
from sweep.config.library import Library, shipped_conf
from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.outcome_rules import OUTCOME_RULES, OutcomeRule
from sweep.core.grids.grid import expand
from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import GpuFlag, Runner, SchedulerKind

WEAK = "+grid=weak_scaling"
LOCAL = "cluster=local"


def axes(*overrides, own=None):
    return load(overrides, config_dir=own).grid.axes


# The command line


def test_a_scalar_fixes_an_axis_and_a_list_varies_it():
    found = axes(WEAK, LOCAL, "nodes=[2,8]", "tp=2", "trainer.lr=[1e-4,3e-4]")
    assert (found["nodes"], found["tp"], found["trainer.lr"]) == ((2, 8), (2,), (1e-4, 3e-4))


def test_model_takes_one_name_or_a_list_although_it_is_a_folder_too():
    assert axes(WEAK, LOCAL, "model=llama2_7b")["model"] == ("llama2_7b",)
    spec = load([WEAK, LOCAL, "model=[llama2_7b,llama2_13b]"])
    assert spec.grid.axes["model"] == ("llama2_7b", "llama2_13b")
    assert spec.grid.models["llama2_13b"].n_layers == 40


def test_only_the_models_and_devices_that_are_used_are_read():
    spec = load([WEAK, LOCAL, "device=[cpu,h200-141gb-sxm]"])
    assert set(spec.grid.models) == {"debug_1m"}
    assert set(spec.devices) == {"cpu", "h200-141gb-sxm"}
    assert spec.devices["h200-141gb-sxm"].unlike == ("NVL", "MIG")


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_plus_before_a_key_changes_nothing(plus):
    assert axes(f"{plus}grid=weak_scaling", f"{plus}cluster=local", f"{plus}nodes=3")["nodes"] == (3,)


def test_null_is_a_value_where_an_axis_has_it():
    assert axes(WEAK, LOCAL, "micro_batch=[null,1]")["micro_batch"] == (None, 1)


def test_the_last_of_two_values_for_a_key_wins_as_in_hydra():
    assert axes(WEAK, LOCAL, "nodes=2", "nodes=4")["nodes"] == (4,)


def test_settings_of_the_root_are_typed():
    spec = load(
        f"{WEAK} {LOCAL} repeats=3 watch=false tables=false retry=[timeout,LOST] mix_fingerprints=true "
        "flop_convention=causal run_dir=/scratch/${grid.name} scale=paper".split()
    )
    assert (spec.repeats, spec.watch, spec.tables, spec.mix_fingerprints) == (3, False, False, True)
    assert spec.retry == (Outcome.TIMEOUT, Outcome.LOST)
    assert (spec.flop_convention, spec.run_dir, spec.scale) == ("causal", "/scratch/weak_scaling", "paper")


def test_the_overrides_are_kept_as_typed():
    assert load([WEAK, LOCAL, "nodes=[1,2]"]).overrides == (WEAK, LOCAL, "nodes=[1,2]")


def test_conditions_of_the_command_line_are_added_to_the_grids(own):
    write_grid(own, exclude=["nodes == 3"])
    spec = load(["+grid=mine", LOCAL, "exclude=['tp > 2']", "require='nodes < 9'"], config_dir=own)
    assert (spec.grid.exclude, spec.grid.require) == (("nodes == 3", "tp > 2"), ("nodes < 9",))


def test_the_series_can_be_changed_key_by_key():
    spec = load([WEAK, LOCAL, "series.baseline.nodes=2", "series.by=[model]", "series.envelope=best"])
    assert spec.series.kind == "weak"
    assert (spec.series.baseline, spec.series.by, spec.series.envelope) == ({"nodes": 2}, ("model",), "best")


def test_a_baseline_may_be_left_out_of_the_command_lines_values_because_it_may_have_been_measured_before():
    assert load([WEAK, LOCAL, "nodes=[2,4]"]).series.baseline == {"nodes": 1}


def test_settings_of_the_cluster_are_typed_and_reach_their_place():
    typed = """cluster=slurm cluster.slurm.partition=gpu cluster.slurm.mem=0 cluster.slurm.account=1234
        cluster.slurm.sbatch.switches=1 +cluster.launch.environment.NCCL_DEBUG=INFO cluster.walltime_min=5
        cluster.launch.entry=['-m',fake] cluster.launch.runner=direct cluster.slurm.gpu_flag=none
        cluster.slurm={qos:low,constraint:a100} cluster.launch.port_range=[21000,22000]"""
    cluster = load([WEAK, *typed.split()]).cluster
    assert (cluster.slurm.partition, cluster.slurm.mem, cluster.slurm.account) == ("gpu", "0", "1234")
    assert (cluster.slurm.qos, cluster.slurm.constraint) == ("low", "a100")
    assert (cluster.slurm.sbatch, cluster.launch.environment) == ({"switches": 1}, {"NCCL_DEBUG": "INFO"})
    assert (cluster.launch.entry, cluster.launch.runner) == (("-m", "fake"), Runner.DIRECT)
    assert (cluster.slurm.gpu_flag, cluster.walltime_min) == (GpuFlag.NONE, 5)
    assert cluster.launch.port_range == (21000, 22000)


@given(
    nodes=st.lists(st.integers(1, 4096), min_size=1, max_size=5, unique=True),
    lr=st.floats(1e-9, 10, allow_nan=False),
    precision=st.sampled_from(["fp32", "bf16", "fp16", "float8", "mxfp8"]),
    compile_=st.booleans(),
)
def test_what_is_typed_comes_back_as_the_values_of_the_axes(nodes, lr, precision, compile_):
    typed = [f"nodes={nodes}", f"trainer.lr={lr!r}", f"precision={precision}", f"compile={str(compile_).lower()}"]
    values = {item.key: item.value for item in parse(typed)}
    assert values == {"nodes": nodes, "trainer.lr": lr, "precision": precision, "compile": compile_}


# The cluster


def test_the_cluster_is_slurm_where_sbatch_is_and_local_elsewhere(tmp_path):
    assert load([WEAK], environ={"PATH": str(tmp_path)}).cluster.name == "local"
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    spec = load([WEAK], environ={"PATH": str(tmp_path)})
    assert (spec.cluster.name, spec.cluster.scheduler, spec.scale) == ("slurm", SchedulerKind.SLURM, "paper")
    assert load([WEAK, "cluster=auto"], environ={"PATH": str(tmp_path)}).cluster.name == "slurm"
    assert load([WEAK, LOCAL], environ={"PATH": str(tmp_path)}).cluster.name == "local"


def test_the_cluster_gives_scale_device_and_gpus_a_node_where_nothing_else_does(own):
    (own / "cluster" / "site.yaml").write_text(
        "scheduler: slurm\nscale: paper\ngpus_per_node: 4\ndevice: a100-80gb-sxm\nslurm: {partition: gpu}\n"
    )
    spec = load([WEAK, "cluster=site"], config_dir=own)
    assert (spec.scale, spec.grid.axes["gpus_per_node"], spec.grid.axes["device"]) == (
        "paper",
        (4,),
        ("a100-80gb-sxm",),
    )
    assert axes(WEAK, "cluster=site", "gpus_per_node=8", own=own)["gpus_per_node"] == (8,)
    assert axes(WEAK, "cluster=site", "cluster.gpus_per_node=2", own=own)["gpus_per_node"] == (2,)


# Precedence


def write_grid(own, name="mine", **parts):
    import yaml

    grid = {
        "name": name,
        "batch_rule": "sequences_per_gpu",
        "series": {"kind": "weak", "baseline": {"nodes": 1}},
        "axes": {"nodes": [1, 2], "model": "debug_1m", "seq_len": 128, "sequences_per_gpu": 2},
    }
    (own / "grid" / f"{name}.yaml").write_text(yaml.safe_dump({**grid, **parts}, sort_keys=False))


def steps(own, *overrides):
    return axes("+grid=mine", LOCAL, *overrides, own=own).get("trainer.steps")


def test_a_setting_comes_from_the_command_line_then_the_scale_then_the_grid_then_the_trainers_file(own):
    (own / "trainer" / "short.yaml").write_text("steps: 21\n")
    common = {"nodes": [1], "model": "debug_1m", "seq_len": 128, "sequences_per_gpu": 2}
    write_grid(own, axes=common)
    assert steps(own) is None  # the dataclass's default, which no axis repeats
    assert steps(own, "trainer=short") == (21,)
    write_grid(own, axes={**common, "trainer.steps": 22})
    assert steps(own, "trainer=short") == (22,)
    write_grid(own, axes={**common, "trainer.steps": 22}, scales={"laptop": {"axes": {"trainer.steps": 23}}})
    assert steps(own, "trainer=short") == (23,)
    assert steps(own, "trainer=short", "trainer.steps=24") == (24,)
    assert {cell.trainer.steps for cell in expand(load(["+grid=mine", LOCAL], config_dir=own).grid).cells.values()} == {
        23
    }


def test_repeats_come_from_the_command_line_then_the_scale_then_the_grid(own):
    def repeats(*overrides):
        return load(["+grid=mine", LOCAL, *overrides], config_dir=own).repeats

    write_grid(own)
    assert repeats() == 1
    write_grid(own, repeats=2)
    assert repeats() == 2
    write_grid(own, repeats=2, scales={"laptop": {"repeats": 3}})
    assert repeats() == 3
    assert repeats("repeats=4") == 4


def test_a_scale_replaces_zip_and_cells_adds_conditions_and_merges_the_series(own):
    write_grid(
        own,
        zip=[{"tp": [1, 2], "compile": [False, True]}],
        cells=[{"pp": 1}],
        exclude=["tp > 4"],
        series={"kind": "weak", "baseline": {"nodes": 1}, "by": ["tp"]},
        scales={
            "laptop": {
                "zip": [{"tp": [1, 4], "compile": [False, True]}],
                "cells": [{"cp": 1}],
                "exclude": ["tp > 3"],
                "require": ["nodes < 9"],
                "series": {"baseline": {"nodes": 2}},
            }
        },
    )
    spec = load(["+grid=mine", LOCAL], config_dir=own)
    assert spec.grid.zips == ({"tp": (1, 4), "compile": (False, True)},)
    assert spec.grid.cells == ({"cp": (1,)},)
    assert (spec.grid.exclude, spec.grid.require) == (("tp > 4", "tp > 3"), ("nodes < 9",))
    assert (spec.series.kind, spec.series.baseline, spec.series.by) == ("weak", {"nodes": 2}, ("tp",))


def test_a_grid_without_scales_serves_any_scale(own):
    write_grid(own)
    assert load(["+grid=mine", LOCAL, "scale=paper"], config_dir=own).scale == "paper"


# Overriding zips and explicit cells


def test_one_value_for_a_zipped_axis_fixes_it_for_all_entries():
    grid = load(["+grid=model_size", "cluster=slurm", "model=llama3_8b"]).grid
    assert grid.axes["model"] == ("llama3_8b",)
    assert set(grid.zips[0]) == {"activation_checkpointing", "reshard_after_forward"}


def test_a_zip_of_which_all_axes_are_fixed_is_one_combination():
    grid = load(["+grid=context_length", LOCAL, "seq_len=64", "cp=1"]).grid
    assert grid.zips == ()
    assert len(expand(grid).points) == 1


def test_a_list_as_long_as_the_zip_takes_the_place_of_the_axis_in_it():
    grid = load(["+grid=context_length", LOCAL, "seq_len=[32,64,128,256]"]).grid
    assert grid.zips == ({"seq_len": (32, 64, 128, 256), "cp": (1, 1, 1, 2)},)
    assert "seq_len" not in grid.axes


def test_an_axis_that_is_left_alone_in_its_zip_takes_a_list_of_any_length():
    grid = load(["+grid=context_length", LOCAL, "seq_len=[32,64]", "cp=1"]).grid
    assert (grid.zips, grid.axes["seq_len"], grid.axes["cp"]) == ((), (32, 64), (1,))


def test_an_override_takes_the_place_of_an_axis_in_every_explicit_cell():
    grid = load(["+grid=model_parallel", "cluster=slurm", "tp=[1,2]"]).grid
    assert grid.axes["tp"] == (1, 2)
    assert not any("tp" in cell for cell in grid.cells)
    points = expand(grid)
    assert len(points.points) + len(points.rejections) == 2 + 2 * 4


def test_auto_on_the_command_line_takes_the_place_of_the_sharding_that_no_grid_asks_for():
    expansion = expand(load([WEAK, LOCAL, "dp_replicate=auto"]).grid)
    assert {cell.parallelism.dp_shard for cell in expansion.cells.values()} == {1}
    assert [cell.parallelism.dp_replicate for cell in expansion.cells.values()] == [1, 2, 4]


def test_auto_twice_names_the_grids_degree_that_needs_a_number(own):
    write_grid(own, cells=[{"dp_shard": "auto"}])
    with pytest.raises(ValueError, match=r"tp=auto, but dp_shard is auto too.*dp_shard=1"):
        load(["+grid=mine", LOCAL, "tp=auto"], config_dir=own)
    assert axes("+grid=mine", LOCAL, "tp=auto", "dp_shard=1", own=own)["dp_shard"] == (1,)


# Folders


def test_a_users_grid_takes_the_place_of_a_shipped_one_of_the_same_name(own):
    write_grid(own, name="weak_scaling")
    assert axes(WEAK, LOCAL, own=own)["nodes"] == (1, 2)
    assert axes(WEAK, LOCAL)["nodes"] == (1, 2, 4)


def test_a_users_slurm_file_is_what_cluster_auto_finds(own, tmp_path):
    (own / "cluster" / "slurm.yaml").write_text("scheduler: slurm\nscale: paper\ngpus_per_node: 4\ndevice: cpu\n")
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    assert load([WEAK], config_dir=own, environ={"PATH": str(tmp_path)}).cluster.gpus_per_node == 4


def test_a_baseline_may_name_a_model_that_the_command_line_leaves_out(own):
    write_grid(own, series={"kind": "weak", "baseline": {"model": "debug_1m"}})
    spec = load(["+grid=mine", LOCAL, "model=debug_3m"], config_dir=own)
    assert (set(spec.grid.models), spec.series.baseline) == ({"debug_1m", "debug_3m"}, {"model": "debug_1m"})


def test_a_users_model_and_device_are_found_beside_the_shipped_ones(own):
    (own / "model" / "tiny.yaml").write_text(
        "n_layers: 2\nhidden: 64\nn_heads: 4\nn_kv_heads: 2\nffn_hidden: 128\nvocab_size: 256\n"
    )
    (own / "hardware" / "mine.yaml").write_text("type: cuda\nmatch: [Mine]\npeak_tflops: {bf16: 3}\n")
    spec = load([WEAK, LOCAL, "model=[tiny,debug_1m]", "device=mine"], config_dir=own)
    assert (spec.grid.models["tiny"].hidden, spec.grid.models["tiny"].name) == (64, "tiny")
    assert spec.devices["mine"].peak_tflops == {"bf16": 3.0}


def test_a_grid_can_build_on_a_shipped_one(own):
    (own / "grid" / "more.yaml").write_text(
        "defaults: [weak_scaling]\nname: more\nscales: {laptop: {axes: {nodes: [1, 2, 3]}}}\n"
    )
    found = axes("+grid=more", LOCAL, own=own)
    assert (found["nodes"], found["model"]) == ((1, 2, 3), ("debug_1m",))


def test_a_relative_config_dir_and_one_with_a_space_in_its_name_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "my grids"
    (folder / "grid").mkdir(parents=True)
    write_grid(folder)
    monkeypatch.chdir(tmp_path)
    assert axes("+grid=mine", LOCAL, own=Path("my grids"))["nodes"] == (1, 2)


def test_grids_are_listed_with_a_line_each_and_the_users_first(own):
    write_grid(own, description="of my own")
    write_grid(own, name="weak_scaling", description="not the shipped one")
    found = available("grid", own)
    assert (found["mine"], found["weak_scaling"]) == ("of my own", "not the shipped one")
    assert "§4.3" in found["model_parallel"]
    assert "local" in available("cluster")


def test_an_installed_package_finds_its_configuration_inside_itself(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "sweep"
    shutil.copytree(shipped_conf(), package / "conf")
    assert shipped_conf(package) == package / "conf"
    monkeypatch.setattr(library_module, "shipped_conf", lambda: shipped_conf(package))
    assert axes(WEAK, LOCAL)["nodes"] == (1, 2, 4)
    assert Library.at(None).shipped == package / "conf"


def test_a_package_without_configuration_says_so(tmp_path):
    with pytest.raises(ValueError, match="Install the package again"):
        shipped_conf(tmp_path / "sweep")


# What Hydra leaves behind


def test_nothing_of_hydra_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load([WEAK, LOCAL])
    with pytest.raises(ValueError, match="no grid"):
        load(["+grid=nothing"])
    assert not GlobalHydra.instance().is_initialized()
    assert list(tmp_path.iterdir()) == []
    assert Path.cwd() == tmp_path


def test_a_host_application_that_uses_hydra_keeps_its_state():
    with initialize_config_dir(str(shipped_conf()), version_base="1.3"):
        mine = GlobalHydra.instance().hydra
        load([WEAK, LOCAL])
        assert GlobalHydra.instance().hydra is mine


@contextmanager
def hydra_of_another(folder):
    with initialize_config_dir(str(folder), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def test_a_users_folder_does_not_stay_on_the_search_path(own):
    write_grid(own)
    load(["+grid=mine", LOCAL], config_dir=own)
    with pytest.raises(ValueError, match="no grid 'mine'"):
        load(["+grid=mine", LOCAL])
    with hydra_of_another(shipped_conf()) as config_loader:
        assert "mine" not in config_loader.get_group_options("grid")
    with pytest.raises(ValueError, match="mine"):
        compose(Library.at(None), {"grid": "mine", "cluster": "local", "trainer": "default"}, [])


def test_neither_torch_nor_pandas_nor_rich_nor_logging_handlers_come_with_the_configuration(tmp_path):
    code = (
        "import sys, logging\n"
        "from sweep.config import load\n"
        "load(['+grid=weak_scaling', 'cluster=slurm'])\n"
        "heavy = {'torch', 'pandas', 'rich', 'numpy', 'submitit'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert not logging.getLogger().handlers\n"
    )
    root = Path(library_module.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_the_default_policy_file_states_every_default_of_the_code():
    path = shipped_conf() / "policy" / "default.yaml"
    stated = OmegaConf.to_container(OmegaConf.load(path))
    assert list(stated["outcomes"]) == list(Outcome)
    assert {"description", "outcomes"} | {name.removeprefix("policy.") for name in policy_keys()} == set(stated)
    # What the file leaves out of a rule has the value that it has in any rule.
    plain = {name: OutcomeRule(max_retries=0, disposition="", shown_as="") for name in Outcome}
    for name, rule in OUTCOME_RULES.items():
        kept = {"disposition": rule.disposition, "shown_as": rule.shown_as}
        assert replace(plain[name], **kept, **stated["outcomes"][name]) == rule, name
    assert load([WEAK, LOCAL]).policy == Policy()
