"""Bad input answers with what was asked, what is true and what to change, on one screen."""

import pytest

from sweep.config import ConfigError, load

WEAK = "+grid=weak_scaling"
LOCAL = "cluster=local"


def refusal(*overrides, own=None):
    with pytest.raises(ConfigError) as caught:
        load(overrides, config_dir=own)
    message = str(caught.value)
    assert len(message.splitlines()) <= 20, "one screen"
    assert "Traceback" not in message
    return message


GRID = """
name: mine
batch_rule: sequences_per_gpu
series: {kind: weak, baseline: {nodes: 1}}
axes: {nodes: [1, 2], model: debug_1m, seq_len: 128, sequences_per_gpu: 2}
"""


def refused_grid(own, text, *overrides):
    (own / "grid" / "mine.yaml").write_text(text)
    message = refusal("+grid=mine", LOCAL, *overrides, own=own)
    assert str(own / "grid" / "mine.yaml") in message
    return message


# Each: the overrides, and what the answer has to name.
ON_THE_COMMAND_LINE = [
    ([LOCAL], ["+grid=NAME", "weak_scaling", "context_length"]),
    (["+grid=weak_scalin"], ["no grid 'weak_scalin'", "Did you mean weak_scaling?", "There are:", "model_size"]),
    (["weak_scaling"], ["+grid=weak_scaling"]),
    (["+grid=[weak_scaling,model_size]"], ["one name"]),
    ([WEAK, "+grid=model_size"], ["given twice"]),
    ([WEAK, "cluster=slrm"], ["Did you mean slurm?", "private_slurm"]),
    ([WEAK, "cluster={a: 1}"], ["one name"]),
    ([WEAK, LOCAL, "trainer=defalt"], ["Did you mean default?"]),
    ([WEAK, LOCAL, "model=llama2_7"], ["no model 'llama2_7'", "llama2_7b", "debug_1m"]),
    ([WEAK, LOCAL, "model=[debug_1m,llama2_8b]"], ["no model 'llama2_8b'"]),
    ([WEAK, LOCAL, "device=h100"], ["no device 'h100'", "h100-80gb-sxm", "h100-80gb-pcie"]),
    ([WEAK, LOCAL, "nodez=2"], ["no key 'nodez'", "Did you mean nodes?"]),
    ([WEAK, LOCAL, "zzzzzz=2"], ["no key 'zzzzzz'", "nodes", "repeats"]),
    ([WEAK, LOCAL, "cluster.slurm.partiton=gpu"], ["Did you mean cluster.slurm.partition?"]),
    ([WEAK, LOCAL, "cluster.name=other"], ["no key 'cluster.name'"]),
    ([WEAK, LOCAL, "trainer.lrr=1"], ["Did you mean trainer.lr?"]),
    ([WEAK, LOCAL, "trainer.zzzzzz=1"], ["trainer.warmup_steps"]),
    ([WEAK, LOCAL, "nodes=1,2,4"], ["nodes=[1,2,4]"]),
    ([WEAK, LOCAL, "nodes=range(1,4)"], ["nodes=[1,2,3]"]),
    ([WEAK, LOCAL, "nodes=two"], ["nodes='two'", "whole number"]),
    ([WEAK, LOCAL, "nodes=0"], ["nodes=0", ">= 1"]),
    ([WEAK, LOCAL, "nodes=null"], ["nodes=None"]),
    ([WEAK, LOCAL, "nodes=auto"], ["nodes='auto'", "whole number"]),
    ([WEAK, LOCAL, "nodes=[]"], ["no value"]),
    ([WEAK, LOCAL, "nodes=[[1]]"], ["[1,2,4]"]),
    ([WEAK, LOCAL, "nodes={a: 1}"], ["plain value"]),
    ([WEAK, LOCAL, "tp=2.5"], ["tp=2.5", "whole number"]),
    ([WEAK, LOCAL, "precision=bf61"], ["fp32, bf16, fp16, float8, mxfp8"]),
    ([WEAK, LOCAL, "compile=perhaps"], ["compile='perhaps'", "true or false"]),
    ([WEAK, LOCAL, "trainer.lr=fast"], ["trainer.lr='fast'", "a number"]),
    ([WEAK, LOCAL, "schedule=2f2b"], ["1f1b"]),
    ([WEAK, LOCAL, "global_batch=32"], ["holds sequences_per_gpu fixed", "global_batch"]),
    ([WEAK, LOCAL, "tp=auto", "dp_shard=auto"], ["only one degree", "tp=1"]),
    ([WEAK, LOCAL, "repeats=0"], ["repeats=0", ">= 1"]),
    ([WEAK, LOCAL, "repeats=some"], ["repeats='some'"]),
    ([WEAK, LOCAL, "watch=perhaps"], ["watch='perhaps'", "true or false"]),
    ([WEAK, LOCAL, "retry=[timeot]"], ["TIMEOT", "Did you mean TIMEOUT?", "NODE_FAIL"]),
    ([WEAK, LOCAL, "flop_convention=palm"], ["palm_full, causal, with_embedding"]),
    ([WEAK, LOCAL, "scale=papr"], ["Did you mean paper?", "laptop, paper"]),
    ([WEAK, LOCAL, "~nodes"], ["~nodes", "null"]),
    ([WEAK, LOCAL, "hydra.run.dir=x"], ["--config-dir"]),
    ([WEAK, LOCAL, "hydra.searchpath=[file:///x]"], ["--config-dir"]),
    ([WEAK, LOCAL, "grid.axes.nodes=3"], ["nodes=[1,2]", "--config-dir"]),
    ([WEAK, LOCAL, "model@here=debug_1m"], ["KEY=VALUE"]),
    ([WEAK, LOCAL, "=3"], ["KEY=VALUE"]),
    ([WEAK, LOCAL, "exclude=['tpp > 2']"], ["'tpp'", "tp"]),
    ([WEAK, LOCAL, "exclude=['__import__(1)']"], ["not allowed"]),
    ([WEAK, LOCAL, "exclude=[3]"], ["is not text"]),
    ([WEAK, LOCAL, "run_dir=${nothing}"], ["nothing"]),
    ([WEAK, LOCAL, "cluster.scheduler=pbs"], ["slurm, local", "local.yaml with the command line's values"]),
    ([WEAK, LOCAL, "cluster.walltime_min=0"], ["walltime_min=0", "above 0"]),
    ([WEAK, LOCAL, "cluster.lost_after_s=-1"], ["lost_after_s=-1", "0 or more"]),
    ([WEAK, LOCAL, "cluster.launch.port_range=[1]"], ["2 values"]),
    ([WEAK, LOCAL, "cluster.launch.port_range=[9000,8000]"], ["range of ports"]),
    ([WEAK, LOCAL, "cluster.launch.entry=trainer"], ["is not a list"]),
    ([WEAK, LOCAL, "cluster.slurm.sbatch=fast"], ["is not a mapping"]),
    ([WEAK, LOCAL, "cluster.slurm.sbatch.array=[1,2]"], ["sbatch.array"]),
    ([WEAK, LOCAL, "series.kind=weird"], ["weak, strong, free"]),
    ([WEAK, LOCAL, "series.envelope=worst"], ["best"]),
    ([WEAK, LOCAL, "series.baseline.nodez=1"], ["'nodez'", "nodes"]),
    ([WEAK, LOCAL, "series.baseline.nodes=[1,2]"], ["one cell"]),
    ([WEAK, LOCAL, "series.by=[modell]"], ["'modell'", "model"]),
    (["+grid=context_length", LOCAL, "seq_len=[64,128]"], ["2 values", "zips seq_len with cp", "4 values"]),
]


@pytest.mark.parametrize(("overrides", "named"), ON_THE_COMMAND_LINE, ids=lambda item: " ".join(map(str, item))[:60])
def test_a_bad_command_line_is_answered_with_what_to_change(overrides, named):
    message = refusal(*overrides)
    assert [words for words in named if words not in message] == []


@pytest.mark.parametrize(
    ("typed", "column"), [("nodes=[1,2", 10), ("exclude=tp>2", 10), ("a.b[0]=3", 3), ("nodes=[1,,2]", 9)]
)
def test_an_override_that_cannot_be_read_shows_the_position(typed, column):
    lines = refusal(WEAK, LOCAL, typed).splitlines()
    assert lines[1] == f"  {typed}"
    assert lines[2].index("^") in (2 + column - 1, 2 + column)


def test_the_command_lines_bad_value_is_not_blamed_on_the_grids_file():
    assert ".yaml" not in refusal(WEAK, LOCAL, "nodes=0")
    assert ".yaml" not in refusal(WEAK, LOCAL, "exclude=['tpp > 2']")


def test_a_config_dir_that_does_not_exist_is_refused(tmp_path):
    assert "no such folder" in refusal(WEAK, LOCAL, own=tmp_path / "nothing")


def test_a_root_of_the_users_own_is_refused_rather_than_taking_over(own):
    (own / "config.yaml").write_text("repeats: 3\n")
    assert "config.yaml" in refusal(WEAK, LOCAL, own=own)


def test_unreadable_yaml_is_named_with_file_and_line(own):
    message = refused_grid(own, "name: mine\naxes: {nodes: [1,2\nscales: x\n")
    assert "mine.yaml, line 3, column 7: " in message


def test_a_key_that_is_given_twice_in_a_file_is_named_with_its_line(own):
    assert "line 3" in refused_grid(own, "name: mine\nrepeats: 1\nrepeats: 2\n")


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "just words\n"])
def test_a_grid_file_that_is_no_mapping_is_refused(own, text):
    (own / "grid" / "mine.yaml").write_text(text)
    assert refusal("+grid=mine", LOCAL, own=own)


IN_A_GRID = [
    ("batch_rule", "batch_rul", ["'batch_rul'", "Did you mean batch_rule?"]),
    ("axes", "axis", ["'axis'", "Did you mean axes?"]),
    ("nodes: [1, 2]", "nodez: [1, 2]", ["'nodez'", "Did you mean nodes?"]),
    ("nodes: [1, 2]", "nodes: [1, x]", ["nodes='x'", "whole number"]),
    ("nodes: [1, 2]", "nodes: []", ["no value"]),
    ("nodes: [1, 2]", "nodes: [2, 4]", ["baseline.nodes=1", "[2, 4]"]),
    ("name: mine", "name: other", ["'other'", "mine"]),
    ("batch_rule: sequences_per_gpu", "batch_rule: per_gpu", ["'per_gpu'", "sequences_per_gpu"]),
    ("batch_rule: sequences_per_gpu", "repeats: 1", ["batch_rule is missing"]),
    ("batch_rule: sequences_per_gpu", "batch_rule: global_batch", ["sequences_per_gpu", "one batch rule per grid"]),
    ("kind: weak, ", "", ["series.kind is missing"]),
    ("kind: weak", "kind: week", ["weak, strong, free"]),
    ("baseline: {nodes: 1}", "baselin: {nodes: 1}", ["Did you mean baseline?"]),
    ("baseline: {nodes: 1}", "baseline: {nodes: one}", ["nodes='one'"]),
    ("baseline: {nodes: 1}", "baseline: 1", ["series.baseline=1", "{nodes: 1}"]),
    ("axes: {", "axes: 3 # {", ["axes=3", "is not a mapping"]),
    ("model: debug_1m", "model: debug_1m, zip: 3", ["'zip'"]),
]


@pytest.mark.parametrize(("old", "new", "named"), IN_A_GRID)
def test_a_mistake_in_a_grid_is_named_with_its_file(own, old, new, named):
    assert old in GRID
    message = refused_grid(own, GRID.replace(old, new, 1))
    assert [words for words in named if words not in message] == []


ADDED_TO_A_GRID = [
    ("exclude: [tpp > 1]", ["tpp"]),
    ("exclude: {a: b}", ["exclude is not a list"]),
    ("zip: [{tp: [1, 2], pp: [1]}]", ["one length"]),
    ("zip: [{nodes: [1, 2], pp: [1, 2]}]", ["nodes", "twice"]),
    ("zip: {tp: [1, 2]}", ["zip is not a list"]),
    ("cells: [{tpp: 1}]", ["'tpp'"]),
    ("scales: {paper: {}}", ["no scale 'laptop'", "paper"]),
    ("scales: {laptop: {axis: {}}}", ["scales.laptop", "'axis'"]),
    ("scales: {laptop: {}, paper: {batch_rule: global_batch}}", ["scales.paper", "'batch_rule'"]),
]


@pytest.mark.parametrize(("line", "named"), ADDED_TO_A_GRID)
def test_a_mistake_in_an_optional_part_of_a_grid_is_named(own, line, named):
    message = refused_grid(own, f"{GRID}{line}\n")
    assert [words for words in named if words not in message] == []


def test_repeats_of_a_grid_have_to_be_a_positive_number(own):
    (own / "grid" / "mine.yaml").write_text(f"{GRID}repeats: none\n")
    assert "repeats='none'" in refusal("+grid=mine", LOCAL, own=own)


def test_a_grid_that_builds_on_an_unknown_one_says_so(own):
    (own / "grid" / "mine.yaml").write_text("defaults: [weak_scalin]\nname: mine\n")
    assert "grid/weak_scalin" in refusal("+grid=mine", LOCAL, own=own)


CLUSTER = "name: site\nscheduler: slurm\nscale: laptop\ngpus_per_node: 4\ndevice: cpu\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (CLUSTER + "slurm: {partiton: gpu}\n", ["cluster.slurm", "Did you mean partition?"]),
        (CLUSTER + "poll_interval: 3\n", ["Did you mean poll_interval_s?"]),
        (CLUSTER + "walltime_min: long\n", ["cluster.walltime_min='long'", "whole number"]),
        (CLUSTER + "slurm: gpu\n", ["cluster.slurm='gpu'", "mapping"]),
        (CLUSTER.replace("device: cpu\n", ""), ["does not say its device"]),
        (CLUSTER.replace("site", "other"), ["'other'", "site"]),
        (CLUSTER + "slurm: {setup: module load cuda}\n", ["cluster.slurm.setup", "is not a list"]),
    ],
)
def test_a_mistake_in_a_cluster_is_named_with_its_file(own, text, named):
    (own / "cluster" / "site.yaml").write_text(text)
    message = refusal(WEAK, "cluster=site", own=own)
    assert [words for words in [str(own / "cluster" / "site.yaml"), *named] if words not in message] == []


def test_a_mistake_in_a_model_is_named_with_its_file(own):
    shape = "n_layers: 2\nhidden: 64\nn_heads: 4\nffn_hidden: 128\nvocab_size: 256\n"
    (own / "model" / "tiny.yaml").write_text(f"{shape}n_kv_heds: 2\n")
    message = refusal(WEAK, LOCAL, "model=tiny", own=own)
    assert "tiny.yaml" in message
    assert "Did you mean n_kv_heads?" in message
    (own / "model" / "tiny.yaml").write_text(f"{shape}n_kv_heads: 3\n")
    assert "does not divide" in refusal(WEAK, LOCAL, "model=tiny", own=own)


@pytest.mark.parametrize(
    ("text", "named"), [("name: [1\nhidden: 3\n", "line 2"), ("- 1\n", "list"), ("${a}", "tiny.yaml")]
)
def test_a_models_file_that_cannot_be_read_is_named(own, text, named):
    (own / "model" / "tiny.yaml").write_text(text)
    message = refusal(WEAK, LOCAL, "model=tiny", own=own)
    assert "tiny.yaml" in message
    assert named in message


def test_a_mistake_in_a_device_is_named_with_its_file(own):
    (own / "hardware" / "mine.yaml").write_text("type: cuda\npeak_tflops: {bf61: 3}\n")
    message = refusal(WEAK, LOCAL, "device=mine", own=own)
    assert "mine.yaml" in message
    assert "Did you mean bf16?" in message


def test_a_mistake_in_a_trainers_file_is_named_with_its_file(own):
    (own / "trainer" / "mine.yaml").write_text("stepz: 3\n")
    message = refusal(WEAK, LOCAL, "trainer=mine", own=own)
    assert "mine.yaml" in message
    assert "Did you mean steps?" in message


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("setup", "'export WANDB_KEY=abc'"),
        ("container", "apptainer,exec,'--env','MY_PASS=abc'"),
        ("srun_args", "'--container-env=HF_TOKEN=abc'"),
    ],
)
def test_a_secret_in_a_sites_own_words_is_refused_because_job_scripts_are_kept(key, word):
    message = refusal(WEAK, LOCAL, f"cluster.slurm.{key}=[{word}]")
    assert f"cluster.slurm.{key}: " in message
    assert "=$(cat FILE)" in message
    assert "abc" not in message


def test_a_secret_among_the_variables_of_a_job_is_refused_because_it_would_be_written_down(own):
    message = refusal(WEAK, LOCAL, "+cluster.launch.environment={HF_TOKEN: hf_abcdefgh}")
    assert "launch.environment.HF_TOKEN" in message
    assert "hf_abcdefgh" not in message
    for part in ("would be written into the run directory", "export it where the sweep is started"):
        assert part in message
