"""Where a submission comes from: a snapshot of its code in the run directory, commit, changes, versions, command."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

import sweep
from sweep.core.jobs.environment import SOURCE_PACKAGES, hash_sources, is_source
from sweep.core.jobs.secrets import SecretFinder, redacted_text
from sweep.core.records.layout import SOURCES_DIR
from sweep.files import RunDirError, make_folder, write_atomically
from sweep.launch import check


class SourcesError(Exception):
    """The three packages are not where one snapshot can be taken of them."""


def packages_root() -> Path:
    """The folder that holds the packages of this installation."""
    return Path(sweep.__file__).resolve().parent.parent


def snapshot(run_dir: Path, *, root: Path | None = None) -> tuple[Path, str]:
    """Copy the sources of the packages into the run directory, once for each state; gives the copy and its hash.

    Raises:
        SourcesError: If the packages do not share a parent folder, or the copy cannot be written.
    """
    root = packages_root() if root is None else root
    contents = read_sources(root)
    digest = hash_sources(contents.items())
    target = run_dir / SOURCES_DIR / digest
    if os.path.lexists(target) and target.lstat().st_uid != os.geteuid():
        # Another member of the group runs the same code. Jobs run only what is their user's own.
        target = target.with_name(f"{digest}-{os.geteuid()}")
    try:
        if os.path.lexists(target) and check.alteration(target, digest):
            # Somebody edited the copy: jobs would refuse it. It is put right, and what was there is kept aside.
            target.rename(target.with_name(f"{target.name}.altered-{uuid.uuid4().hex[:8]}"))
        if not target.exists():
            _write(contents, run_dir, target)
    except OSError as error:
        raise SourcesError(
            f"the sources that jobs are to run cannot be copied to {target}: {error}. Make room there, or mend its "
            "permissions, and give the same command again."
        ) from error
    return target, digest


def check_text() -> str:
    """The program :mod:`sweep.launch.check`, for a place that nobody changes in a run directory."""
    return Path(check.__file__).read_text(encoding="utf-8")


def checked_command(
    python: str, sources_dir: Path | str, sources_hash: str, *options: str, text: str = ""
) -> list[str]:
    """A command that runs an interpreter with the options once the snapshot was found unaltered, and refuses otherwise.

    The check's text is in the command itself: the snapshot does not check itself.
    """
    return [python, "-I", "-S", "-c", text or check_text(), str(sources_dir), sources_hash, *options]


def read_sources(root: Path) -> dict[str, bytes]:
    """Name, relative to the root, and content of every source of the packages.

    Raises:
        SourcesError: If a package is missing there.
    """
    found = {}
    for package in SOURCE_PACKAGES:
        if not (root / package / "__init__.py").exists():
            raise SourcesError(
                f"{root} holds no package {package!r}; sweep, trainer and analysis must be installed together. "
                "Install the project anew, or run from its checkout."
            )
        for path in (root / package).rglob("*"):
            if is_source(path.relative_to(root)) and path.is_file():
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def _write(contents: dict[str, bytes], run_dir: Path, target: Path) -> None:
    make_folder(run_dir, SOURCES_DIR, mode=0o1777)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        for name, content in contents.items():
            path = draft / name
            for folder in reversed(path.relative_to(draft.parent).parents[:-1]):
                (draft.parent / folder).mkdir(mode=0o755, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
                file.write(content)
        draft.rename(target)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not isinstance(error, OSError) or not target.exists():
            raise


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
