"""A snapshot of the code in the run directory, so that what is queued does not change."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import sweep
from sweep.core.jobs.environment import SOURCE_PACKAGES, hash_sources, is_source
from sweep.core.records.layout import SOURCES_DIR
from sweep.files import make_folder
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
