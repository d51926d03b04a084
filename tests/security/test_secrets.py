"""No secret reaches a run directory: where it would be stored it is refused, where it is recorded it is redacted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sweep.adapters.files.sources_snapshot import collect
from sweep.config.errors import ConfigError
from sweep.config.library import GROUPS, Library
from sweep.config.load import load
from sweep.core.jobs.environment import relevant
from sweep.core.jobs.secrets import REDACTED, SecretFinder, is_secret, redacted_text, secrets_in

ROOT = Path(__file__).parents[2]
SHORT = "hunter2-hunter2"
"""A secret without any shape: only its variable gives it away."""
# Written in two parts, so that no scanner of this repository takes them for real.
HUGGING_FACE = "hf_" + "aB3dE6gH9j" * 3 + "kLmN"
SHAPED = [
    HUGGING_FACE,
    "ghp_" + "a1B2c3D4e5F6" * 3,
    "github_pat_" + "a1B2c3D4e5F6" * 3,
    "glpat-" + "a1B2c3D4e5F6g7H8i9J0",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "xoxb-" + "123456789-abcdefgh",
    "https://hooks.slack.com/services/" + "T000/B000/XXXXXXXX",
    "sk-ant-" + "a1B2c3D4e5F6g7H8i9J0",
    "sk-proj-abc" + "T3BlbkFJ" + "a1B2c3D4e5F6g7H8i9J0",
    "npm_" + "a1B2c3D4e5F6" * 3,
    "SG." + "a" * 22 + "." + "b" * 43,
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".c2lnbmF0dXJl",
    "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "curl -H 'Authorization: Bearer " + "a1B2c3D4'",
    "curl -s -u me:" + "hunter2 https://example.org/x",
    "curl --user='me:" + "hunter2' https://example.org/x",
    "https://me:" + "hunter2@example.org/x",
    "postgres://" + ":hunter2@db/x",
]


def refusal(*overrides: str, own: Path | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(["+grid=weak_scaling", "cluster=local", *overrides], config_dir=own, environ=environ)
    assert not any(value in str(caught.value) for value in environ.values())
    return str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "+cluster.launch.environment={HARMLESS: '${oc.env:HF_TOKEN}'}",
        "run_dir=runs/${oc.env:HF_TOKEN,none}",
        "cluster.slurm.account='${oc.env:HF_TOKEN}'",
    ],
)
def test_a_secret_that_a_key_takes_from_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "x")  # too short to be compared: its name is enough
    assert "HF_TOKEN from the environment" in refusal(override)


def test_an_interpolation_in_a_file_of_ones_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GH_PAT", "x")
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("type: cpu\nsource: ${oc.env:GH_PAT}\n")
    message = refusal("device=mine", own=tmp_path)
    assert "mine.yaml: source takes GH_PAT" in message


@pytest.mark.parametrize("name", ["HF_TOKEN", "GH_PAT", "MY_PASS", "BASIC_AUTH"])
def test_the_value_of_a_secret_variable_is_refused_wherever_it_stands(name: str) -> None:
    message = refusal(f"+cluster.launch.environment={{HARMLESS: 'a {SHORT} b'}}", **{name: SHORT})
    assert "cluster.launch.environment.HARMLESS" in message
    assert f"the value of {name}" in message


@pytest.mark.parametrize("text", SHAPED)
def test_what_has_the_shape_of_a_secret_is_refused_and_redacted(text: str) -> None:
    finder = SecretFinder({})
    assert len(finder.find(text)) == 1
    assert REDACTED in finder.redacted(text)
    assert not finder.find(finder.redacted(text))
    inner = json.dumps(text.replace("'", ""))
    assert "It is a secret" in refusal(f"cluster.slurm.setup=[{inner}]")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("huggingface-cli login --token abc", "--token"),
        ("tool --api-key=abc", "--api-key"),
        ("export GH_PAT=abc", "GH_PAT="),
        ("export MY_PASS=abc", "MY_PASS="),
    ],
)
def test_a_set_up_line_that_gives_a_secret_is_refused(line: str, shown: str) -> None:
    message = refusal(f"cluster.slurm.setup=['{line}']")
    assert shown in message
    assert "abc" not in message


def test_a_secret_split_over_the_words_of_a_command_is_refused() -> None:
    assert "--token" in refusal("cluster.slurm.container=[apptainer,exec,'--token',abc]")
    assert "--password" in refusal("cluster.launch.entry=['-m',mine,'--password',abc]")


@pytest.mark.parametrize(
    "line",
    [
        "huggingface-cli login --token $HF_TOKEN",
        'huggingface-cli login --token "$(cat ~/.hf)"',
        "tool --token-file /home/me/.hf",
        "tool --ssh-key /home/me/.ssh/id",
        "curl -H 'Authorization: Bearer $HF_TOKEN'",
        "curl -u me:$GH_PAT https://example.org/x",
        "curl -u me https://example.org:8080/x",
        "podman run -u 1000:1000 image",
        "git clone https://me:$GH_PAT@example.org/x",
        "git clone https://me@example.org:8080/x",
        "export CUDA_HOME=/opt/cuda/12.4 OMP_NUM_THREADS=8",
        "apptainer exec --nv --bind /scratch:/scratch docker://repo/image:1.2@sha256:" + "a" * 64,
    ],
)
def test_an_ordinary_line_is_no_secret(line: str) -> None:
    assert secrets_in(line) == []
    assert SecretFinder({}).find(line) == []


@pytest.mark.parametrize("value", ["offline", "disabled", "/home/me/.netrc", "~/.hf/token", "12345678", "short"])
def test_an_ordinary_value_of_a_secret_variable_is_not_looked_for(value: str) -> None:
    assert SecretFinder({"WANDB_API_KEY": value}).find(f"a {value} b") == []


def test_what_notify_is_set_to_is_stored_nowhere_and_may_be_secret() -> None:
    hook = "https://hooks.slack.com/services/" + "T000/B000/XXXXXXXX"
    assert load(["+grid=weak_scaling", "cluster=local", f"notify=[curl,'{hook}']"], environ={}).notify[1] == hook


def test_recorded_variables_are_redacted_by_name_and_by_value() -> None:
    environ = {
        "NCCL_PASS": "a",
        "NCCL_PAT": "b",
        "NCCL_NET_URL": "https://me:" + "hunter2@net:80",
        "NCCL_HARMLESS": f"x{SHORT}y",
        "DATABASE_PASS": SHORT,
        "NCCL_DEBUG": "INFO",
    }
    assert relevant(environ) == {
        "NCCL_PASS": REDACTED,
        "NCCL_PAT": REDACTED,
        "NCCL_NET_URL": f"https://{REDACTED}@net:80",
        "NCCL_HARMLESS": f"x{REDACTED}y",
        "NCCL_DEBUG": "INFO",
    }


def test_a_recorded_command_is_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GH_PAT", SHORT)
    words = ["python", "-m", "sweep", f"run_dir=runs/{SHORT}", f"description={HUGGING_FACE}", "nodes=2"]
    command = str(collect(command=words, sources=tmp_path, run_dir=tmp_path)["command"])
    assert SHORT not in command
    assert HUGGING_FACE not in command
    assert "nodes=2" in command
    assert redacted_text("cluster.slurm.sbatch.GH_PAT=abc") == f"cluster.slurm.sbatch.GH_PAT={REDACTED}"


def test_a_kept_diff_holds_only_what_is_run_and_no_secret(tmp_path: Path) -> None:
    root = tmp_path / "src"
    for name in (
        "sweep/__init__.py",
        "trainer/__init__.py",
        "analysis/__init__.py",
        "conf/a.yaml",
        "notes/private.txt",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("before\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    (root / "notes" / "private.txt").write_text("nobody's business\n")
    elsewhere = collect(command=[], sources=root, run_dir=tmp_path)
    assert (elsewhere["git_is_dirty"], elsewhere["git_diff"]) == (False, None)
    (root / "sweep" / "__init__.py").write_text(f"changed = '{HUGGING_FACE}'\n")
    (root / "conf" / "a.yaml").write_text("changed: 1\n")
    kept = (tmp_path / str(collect(command=[], sources=root, run_dir=tmp_path)["git_diff"])).read_text()
    assert f"+changed = '{REDACTED}'" in kept
    assert "+changed: 1" in kept
    assert "nobody" not in kept


def test_what_is_shipped_and_what_runs_have_written_raises_no_alarm() -> None:
    finder = SecretFinder({})
    folders = (ROOT / "conf", ROOT / "tests" / "golden")
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        text = path.read_text(errors="replace")
        assert finder.find(text) == [], path
        assert secrets_in(text) == [], path
    library = Library.at(None)
    assert all(library.read(group, name) for group in GROUPS for name in library.names(group))


@pytest.mark.parametrize("name", ["PATH", "OLDPWD", "COMPAT", "FORMAT", "SSH_AUTH_SOCK", "GIT_AUTHOR_NAME"])
def test_an_ordinary_variable_is_no_secret(name: str) -> None:
    assert not is_secret(name)
