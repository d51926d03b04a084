"""Creates the directory of a private Slurm: folders, fake GPU devices, munge's key and the database."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tools.slurmbox.daemons import database_options
from tools.slurmbox.errors import PrivateSlurmError
from tools.slurmbox.process import write_file
from tools.slurmbox.settings import Layout, Settings, write_settings


def claim_directory(layout: Layout, settings: Settings) -> None:
    """Make DIR a private Slurm's, unless something else is in it."""
    root = layout.root
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise PrivateSlurmError(
            f"--dir {root}: exists, is not empty and holds no private Slurm. Name a new or empty directory."
        )
    root.mkdir(parents=True, exist_ok=True)
    write_settings(layout, replace(settings, overrides={}))  # they are kept once they have worked


def make_directories(layout: Layout, settings: Settings) -> None:
    """Create the folders and files that the daemons expect in DIR; slurmd stops where its spool folder is missing."""
    root, base = layout.root, layout.base
    layout.run.mkdir(parents=True, exist_ok=True)
    for name in ("etc", "state", "log", "dev", "tmp", *(f"spool/{node}" for node in settings.node_names)):
        (root / name).mkdir(parents=True, exist_ok=True)
    if not base.is_symlink():
        base.symlink_to(root)
    for index in range(settings.gpus_per_node):
        _make_device(root / "dev" / f"gpu{index}")
    if not (root / "etc" / "munge.key").exists():
        write_file(root / "etc" / "munge.key", secrets.token_hex(512), 0o400)


def has_database(layout: Layout) -> bool:
    """True if mariadbd's data directory is complete."""
    return (layout.root / "db" / "complete").exists()


def create_database(layout: Layout, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Create mariadbd's data directory, and replace one that an interrupted `up` left incomplete.

    Args:
        layout: The cluster's paths.
        run: Runs a command; takes the keywords ``check`` and ``timeout_s``.
    """
    data = layout.root / "db"
    shutil.rmtree(data, ignore_errors=True)
    argv = ["mariadb-install-db", *database_options(layout)]
    argv += ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root", "--skip-test-db"]
    done = run(*argv, timeout_s=300, check=False)
    if done.returncode != 0:
        raise PrivateSlurmError(f"`{shlex.join(argv)}` failed:\n{(done.stdout + done.stderr)[-2000:]}")
    write_file(data / "complete", "")


def _make_device(path: Path) -> None:
    """Create a character device in the place of a GPU: Slurm only checks that it exists, and nothing opens it."""
    if path.exists() and stat.S_ISCHR(path.stat().st_mode):
        return
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:  # a container without CAP_MKNOD; Slurm follows the link
        path.symlink_to("/dev/null")
