"""Checks of this machine: the installation, files that shadow it, the file system, the ports."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from sweep.adapters.files.sources_snapshot import SourcesError, packages_root, read_sources
from sweep.core.jobs.environment import SOURCE_PACKAGES
from sweep.core.settings.spec import ClusterSpec
from sweep.launch.probe import file_system_problem
from sweep.usecases.doctor.checks import Check, Finding, ok, problem, warning

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def checks_here(cluster: ClusterSpec, folder: Path, *, cwd: Path | None = None) -> list[Check]:
    """Checks of this machine.

    Args:
        cluster: The cluster.
        folder: Where the run directory is to be made.
        cwd: The working directory.
    """
    return [
        Check(name="packages", run=packages),
        Check(name="shadowing", run=lambda: shadowing(cwd or Path.cwd())),
        Check(name="file system here", run=lambda: file_system(folder)),
        Check(name="port range", run=lambda: port_range(cluster.launch.port_range)),
    ]


def packages(root: Path | None = None) -> Finding:
    """The three packages lie in one folder, of which a snapshot is taken, and Python imports them from there."""
    root = root or packages_root()
    try:
        read_sources(root)
    except SourcesError as error:
        return problem("packages", str(error), "Install the project anew, or run from its checkout.")
    elsewhere = [f"{name} ({place})" for name in SOURCE_PACKAGES if (place := _place(name)) not in (None, root)]
    if elsewhere:
        return problem(
            "packages",
            f"Python imports {', '.join(elsewhere)}, not from {root}",
            "Take the other package of that name off PYTHONPATH, uninstall it, or leave the folder that it lies in.",
        )
    return ok("packages", f"sweep, trainer and analysis lie together in {root}")


def _place(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).resolve().parents[1] if spec is not None and spec.origin else None


def shadowing(cwd: Path) -> Finding:
    """No file in the working directory has the name of a package; the checkout itself is no such directory."""
    if cwd.resolve() == packages_root():
        return ok("shadowing", "the working directory is the checkout")
    stray = [
        str(path)
        for name in SOURCE_PACKAGES
        for path in (cwd / f"{name}.py", cwd / name / "__init__.py")
        if path.exists()
    ]
    if stray:
        return warning(
            "shadowing",
            f"these files in the working directory have the names of this project's packages: {', '.join(stray)}",
            "Jobs are safe (PYTHONSAFEPATH=1), but `python -m sweep` here may import one: rename it, or go elsewhere.",
        )
    return ok("shadowing", f"nothing in {cwd} has the name of one of the packages")


def file_system(folder: Path) -> Finding:
    """Atomic rename and hard links work where the run directory is to be."""
    lacking = file_system_problem(folder)
    if lacking:
        return problem("file system here", f"{folder}: {lacking}", "Give run_dir=DIR on a file system that has them.")
    if not os.access(folder, os.X_OK | os.W_OK):
        return problem("file system here", f"{folder} cannot be written", "Give another run_dir.")
    return ok("file system here", f"atomic rename and hard links work in {folder}")


def port_range(ports: tuple[int, int], ephemeral: Path = _EPHEMERAL) -> Finding:
    """The rendezvous ports lie outside the range from which the system takes ports for outgoing connections."""
    try:
        low, high = map(int, ephemeral.read_text().split())
    except (OSError, ValueError):
        return ok("port range", f"{ports[0]} to {ports[1]}")
    if ports[0] <= high and ports[1] >= low:
        return warning(
            "port range",
            f"{ports[0]} to {ports[1]} overlaps with the ephemeral ports {low} to {high}, some of them always taken",
            f"Set cluster.launch.port_range below {low}, for example [20000,29999].",
        )
    return ok("port range", f"{ports[0]} to {ports[1]} is clear of the ephemeral ports {low} to {high}")


def interpreter(cluster: ClusterSpec) -> str:
    """The interpreter on the nodes."""
    return cluster.launch.python or sys.executable
