"""Installs the Debian packages of a private Slurm, without starting their services."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.slurmbox.errors import CannotRunHereError
from tools.slurmbox.process import SYSTEM_PATH, locked, write_file

# Debian package -> a program that it installs.
PACKAGES: Mapping[str, str] = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "slurm-client": "sbatch",
    "munge": "munged",
    "mariadb-server": "mariadbd",
}
POLICY = Path("/usr/sbin/policy-rc.d")


def missing_packages() -> list[str]:
    """Debian packages whose program is not on this machine."""
    return [name for name, program in PACKAGES.items() if shutil.which(program, path=SYSTEM_PATH) is None]


@contextlib.contextmanager
def _no_service_start(policy: Path = POLICY) -> Iterator[None]:
    """Keep freshly installed packages from starting system services (Debian's policy-rc.d, exit 101)."""
    if policy.exists():
        yield
        return
    write_file(policy, "#!/bin/sh\nexit 101\n", 0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def _apt_install(packages: Sequence[str]) -> None:
    """Install packages, with fresh lists only if the first try fails."""
    environment = {"PATH": SYSTEM_PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    wait_for_lock = ["-o", "DPkg::Lock::Timeout=120"]
    install = ["apt-get", "install", "-y", "--no-install-recommends", *wait_for_lock, *packages]
    for argv in (install, ["apt-get", "update"], install):
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if argv is install and done.returncode == 0:
            return
    tail = "\n".join(f"  | {line}" for line in (done.stdout + done.stderr).splitlines()[-8:])
    raise CannotRunHereError(
        f"Installing {' '.join(packages)} failed (apt-get exit {done.returncode}):\n{tail}\n"
        "Repair apt, or install these packages yourself, and run `up` again."
    )


def ensure_packages(lock: Path, say: Callable[[str], None]) -> None:
    """Install missing packages, one caller at a time; raise CannotRunHereError where that is impossible."""
    if not missing_packages():
        return
    with locked(lock):
        missing = missing_packages()
        if missing and shutil.which("apt-get", path=SYSTEM_PATH) is None:
            raise CannotRunHereError(
                f"A private Slurm needs {', '.join(missing)} and there is no apt-get to install them.\n"
                "Install their programs yourself, or use a Debian or Ubuntu machine (or container)."
            )
        if missing:
            say(f"installing {' '.join(missing)}")
            with _no_service_start():
                _apt_install(missing)
    if still := missing_packages():
        raise CannotRunHereError(f"Installed, but the programs of {', '.join(still)} are not in {SYSTEM_PATH}.")
