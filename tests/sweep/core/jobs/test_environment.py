from __future__ import annotations

import pytest

from sweep.core.jobs.environment import relevant, scrubbed
from sweep.core.jobs.secrets import REDACTED, is_secret, redacted_text, secrets_in


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "SLURM_JOB_ID",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "PYTORCH_CUDA_ALLOC_CONF",
        "MASTER_ADDR",
        "GLOO_SOCKET_IFNAME",
        "FI_PROVIDER",
        "LD_PRELOAD",
        "PYTHONSAFEPATH",
    ],
)
def test_what_can_change_a_number_is_kept(name: str) -> None:
    assert relevant({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name", ["HOME", "USER", "PATH", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "MY_NCCL_DEBUG", "RANKS"]
)
def test_what_cannot_is_not(name: str) -> None:
    assert relevant({name: "1"}) == {}


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JWT",
        "NCCL_AUTH",
        "TORCH_HUB_TOKEN",
        "SWEEP_API_KEY",
        "SLURM_DB_PASSWORD",
        "CUDA_SECRET",
        "OMP_credential",
    ],
)
def test_what_is_named_like_a_secret_is_redacted(name: str) -> None:
    assert relevant({name: "hunter2"}) == {name: REDACTED}


def test_variables_come_sorted_by_name() -> None:
    assert list(relevant({"OMP_B": "", "CUDA_A": "", "NCCL_C": ""})) == ["CUDA_A", "NCCL_C", "OMP_B"]


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_CPU_BIND",
        "SLURM_JOB_ID",
        "SLURMD_NODENAME",
        "SBATCH_PARTITION",
        "SRUN_DEBUG",
        "SALLOC_ACCOUNT",
        "PMIX_RANK",
        "PMI_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "TORCHELASTIC_RUN_ID",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "NODE_RANK",
    ],
)
def test_what_an_enclosing_job_left_is_scrubbed(name: str) -> None:
    assert scrubbed({name: "1", "HOME": "/h"}) == {"HOME": "/h"}


@pytest.mark.parametrize(
    "name", ["SLURM_CONF", "PATH", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "MY_SLURM_JOB_ID", "RANKING"]
)
def test_the_rest_stays_and_so_does_the_way_to_the_controller(name: str) -> None:
    assert scrubbed({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("trainer.api_token=abc", f"trainer.api_token={REDACTED}"),
        ("+cluster.slurm.sbatch.password=a=b\nc", f"+cluster.slurm.sbatch.password={REDACTED}"),
        ("+cluster.launch.environment={HF_TOKEN: hf_abc}", f"+cluster.launch.environment={REDACTED}"),
        ("cluster.slurm.setup=['export WANDB_API_KEY=abc']", f"cluster.slurm.setup={REDACTED}"),
        (
            "cluster.launch.environment={TOKENIZERS_PARALLELISM: 0}",
            "cluster.launch.environment={TOKENIZERS_PARALLELISM: 0}",
        ),
        ("cluster.slurm.container=[apptainer,exec,--env,MY_PASS=abc,x]", f"cluster.slurm.container={REDACTED}"),
        ("cluster.slurm.setup=['export WANDB_KEY=abc']", f"cluster.slurm.setup={REDACTED}"),
        ("notify=[true,'Authorization: Bearer X']", f"notify={REDACTED}"),
        ("+notify=[curl,-d,@-,https://hooks.example.org/T0/X]", f"+notify={REDACTED}"),
        ("nodes=[1,2]", "nodes=[1,2]"),
        ("--token", "--token"),
        ("token=", "token="),
        ("a sentence about token=x", "a sentence about token=x"),
    ],
)
def test_the_value_of_a_secret_override_is_redacted(word: str, shown: str) -> None:
    assert redacted_text(word) == shown


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "GIT_PASSWD",
        "token",
        "WANDB_KEY",
        "MY_PASS",
        "PGPASS",
    ],
)
def test_a_variable_that_holds_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "KEYBOARD", "XAUTHORITY", "MAX_TOKENS", "BYPASS", "KEY", "HF_TOKEN_PATH"],
)
def test_one_that_only_sounds_like_it_may_be_set(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("export WANDB_KEY=abc", ["WANDB_KEY"]),
        ("A=1 HF_TOKEN='hf_abc' python x", ["HF_TOKEN"]),
        ("--env=MY_PASS=abc", ["MY_PASS"]),
        ("ALL,WANDB_API_KEY=abc", ["WANDB_API_KEY"]),
        ("export WANDB_KEY=$(cat ~/.wandb)", []),
        ('export HF_TOKEN="$HF_TOKEN"', []),
        ("export HF_TOKEN=`cat ~/.hf`", []),
        ("--env HF_TOKEN", []),
        ("export HF_TOKEN_PATH=/home/me/.hf", []),
        ("module load cuda; export OMP_NUM_THREADS=8", []),
    ],
)
def test_a_secret_is_found_where_it_stands_in_shell_text_as_it_is(text: str, names: list[str]) -> None:
    assert secrets_in(text) == names
