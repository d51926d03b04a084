from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from sweep.adapters.files.sources_snapshot import SourcesError, collect, packages_root, read_sources, snapshot
from sweep.core.jobs.environment import hash_sources
from sweep.files import RunDirError


def _checkout(root: Path) -> Path:
    for package in ("sweep", "trainer", "analysis"):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text(f'"""{package}."""\n')
    return root


def test_a_snapshot_is_the_code_and_named_by_its_hash(tmp_path: Path) -> None:
    root = _checkout(tmp_path / "src")
    (root / "trainer" / "__pycache__").mkdir()
    (root / "trainer" / "__pycache__" / "x.py").write_text("compiled")
    copy, digest = snapshot(tmp_path, root=root)
    assert copy.name == digest
    assert sorted(read_sources(copy)) == ["analysis/__init__.py", "sweep/__init__.py", "trainer/__init__.py"]
    assert hash_sources(read_sources(copy).items()) == digest


def test_changed_code_gets_another_snapshot_and_the_old_one_stays(tmp_path: Path) -> None:
    root = _checkout(tmp_path / "src")
    old, _ = snapshot(tmp_path, root=root)
    (root / "trainer" / "__init__.py").write_text("changed = True\n")
    new, _ = snapshot(tmp_path, root=root)
    assert old != new
    assert "changed" not in (old / "trainer" / "__init__.py").read_text()
    assert snapshot(tmp_path, root=root)[0] == new


def test_an_altered_copy_is_replaced_and_kept_aside(tmp_path: Path) -> None:
    root = _checkout(tmp_path / "src")
    copy, digest = snapshot(tmp_path, root=root)
    (copy / "trainer" / "__init__.py").write_text("altered = True\n")
    again, same = snapshot(tmp_path, root=root)
    assert (again, same) == (copy, digest)
    assert hash_sources(read_sources(copy).items()) == digest
    assert len(list(copy.parent.glob(f"{digest}.altered-*"))) == 1


def test_packages_that_do_not_lie_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "__init__.py").write_text("")
    with pytest.raises(SourcesError, match="no package 'trainer'"):
        read_sources(tmp_path)


def test_this_installation_can_be_copied(tmp_path: Path) -> None:
    copy, _ = snapshot(tmp_path)
    module = "sweep/core/cells/cell.py"
    assert (copy / module).read_bytes() == (packages_root() / module).read_bytes()


def test_a_copy_that_cannot_be_written_is_one_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    root = _checkout(tmp_path / "src")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(SourcesError, match=r"cannot be copied .* Make room"):
            snapshot(tmp_path, root=root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "sources").iterdir()) == []


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, "-C", str(folder), *words], check=True, capture_output=True)


def test_provenance_names_the_commit_and_keeps_an_uncommitted_diff(tmp_path: Path) -> None:
    root = _checkout(tmp_path / "src")
    _git(root, "init", "-q")
    _git(root, "add", ".")
    _git(root, "commit", "-qm", "one")
    clean = collect(command=["python"], sources=root, run_dir=tmp_path)
    assert len(str(clean["git_commit"])) == 40
    assert (clean["git_is_dirty"], clean["git_diff"]) == (False, None)
    (root / "sweep" / "__init__.py").write_text("changed = True\n")
    dirty = collect(command=["python"], sources=root, run_dir=tmp_path)
    assert dirty["git_is_dirty"] is True
    assert "+changed = True" in (tmp_path / str(dirty["git_diff"])).read_text()


def test_a_diff_that_cannot_be_kept_is_one_clear_error(tmp_path: Path) -> None:
    root = _checkout(tmp_path / "src")
    _git(root, "init", "-q")
    _git(root, "add", ".")
    _git(root, "commit", "-qm", "one")
    (root / "sweep" / "__init__.py").write_text("changed = True\n")
    (tmp_path / "provenance").touch()
    with pytest.raises(RunDirError, match=r"cannot be kept .* Make room"):
        collect(command=["python"], sources=root, run_dir=tmp_path)


def test_provenance_outside_a_checkout_is_unknown_not_invented(tmp_path: Path) -> None:
    found = collect(command=["python"], sources=_checkout(tmp_path / "src"), run_dir=tmp_path)
    assert found["git_commit"] is None
    assert found["packages"]["hydra-core"] is not None  # type: ignore[index]  # a mapping of versions


def test_a_secret_on_the_command_line_is_not_kept(tmp_path: Path) -> None:
    words = ["python", "-m", "sweep", "cluster.launch.environment.API_TOKEN=hunter2", "nodes=2"]
    found = collect(command=words, sources=_checkout(tmp_path / "src"), run_dir=tmp_path)
    assert "hunter2" not in str(found)
    assert "nodes=2" in str(found)
