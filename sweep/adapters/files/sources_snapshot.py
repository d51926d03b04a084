"""A snapshot of the code in the run directory, so that what is queued does not change."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import sweep
from sweep.core.jobs.sources import SOURCE_PACKAGES, hash_sources, is_source
from sweep.core.records.layout import SOURCES_DIR


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
    if not target.exists():
        _write(contents, target)
    elif hash_sources(read_sources(target).items()) != digest:
        # Somebody edited the copy: jobs would refuse it. It is put right, and what was there is kept aside.
        target.rename(target.with_name(f"{digest}.altered-{uuid.uuid4().hex[:8]}"))
        _write(contents, target)
    return target, digest


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


def _write(contents: dict[str, bytes], target: Path) -> None:
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        for name, content in contents.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        draft.rename(target)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not target.exists():
            raise SourcesError(
                f"the sources that jobs are to run cannot be copied to {target}: {error}. Make room there, or mend its "
                "permissions, and give the same command again."
            ) from error
