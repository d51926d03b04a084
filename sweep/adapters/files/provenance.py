"""Where a submission comes from: commit and uncommitted changes, package versions, command."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
from typing import TYPE_CHECKING

from sweep.core.jobs.environment import SOURCE_PACKAGES
from sweep.core.jobs.secrets import SecretFinder, redacted_text
from sweep.files import RunDirError, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROVENANCE_DIR = "provenance"
_RUN = (*SOURCE_PACKAGES, "conf")
_PACKAGES = ("scaling-sweep", "submitit", "hydra-core", "omegaconf", "torch", "numpy", "pandas", "nvidia-ml-py")
_LARGEST_DIFF = 4 * 1024 * 1024


def collect(*, command: Sequence[str], sources: Path, run_dir: Path) -> dict[str, object]:
    """Provenance of what is submitted now; an uncommitted diff of what is run is kept in the run directory.

    Args:
        command: The command line as typed.
        sources: Folder that holds the packages; if it is a git work tree, its commit is recorded.
        run_dir: The run directory.

    Raises:
        RunDirError: If the diff cannot be kept there.
    """
    secrets = SecretFinder(os.environ)
    return {
        "command": [secrets.redacted(redacted_text(word)) for word in command],
        "python": platform.python_version(),
        "submitted_from": socket.gethostname(),
        "packages": {name: _version(name) for name in _PACKAGES},
        **_git(sources, run_dir, secrets),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(sources: Path, run_dir: Path, secrets: SecretFinder) -> dict[str, object]:
    commit = _run_git(sources, "rev-parse", "HEAD")
    if commit is None or _run_git(sources, "ls-files", "--error-unmatch", "sweep/__init__.py") is None:
        return {"git_commit": None, "git_is_dirty": None, "git_diff": None}
    status = _run_git(sources, "status", "--porcelain", "--untracked-files=no", "--", *_RUN) or ""
    # The rest of the repository may hold anything, and a run directory is given away.
    diff = _run_git(sources, "diff", "HEAD", "--binary", "--", *_RUN) if status.strip() else ""
    return {
        "git_commit": commit.strip(),
        "git_is_dirty": bool(status.strip()),
        "git_diff": _keep_diff(secrets.redacted(diff), run_dir) if diff else None,
    }


def _keep_diff(diff: str, run_dir: Path) -> str:
    if len(diff) > _LARGEST_DIFF:
        diff = diff[:_LARGEST_DIFF] + "\n(cut here: larger than 4 MiB)\n"
    name = f"{PROVENANCE_DIR}/{hashlib.sha256(diff.encode()).hexdigest()[:16]}.diff"
    path = run_dir / name
    if not path.exists():
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, diff)
        except OSError as error:
            raise RunDirError(
                f"the diff of the uncommitted sources cannot be kept as {path}: {error}. Make room there, or mend its "
                "permissions."
            ) from error
    return name


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=30, check=False, encoding="utf-8",
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
