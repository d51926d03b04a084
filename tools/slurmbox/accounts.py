"""Sets up the accounting of a private Slurm: its cluster, account, users and qualities of service."""

from __future__ import annotations

import getpass
import os
import pwd
import re
import subprocess
from collections.abc import Callable

from tools.slurmbox.errors import PrivateSlurmError
from tools.slurmbox.process import tail
from tools.slurmbox.settings import CLUSTER_NAME, Layout

ACCOUNT = "sweep"


class Accounts:
    """Adds what is missing in the accounting database of one cluster.

    Args:
        layout: The cluster's paths.
        run: Runs one of Slurm's commands; takes a keyword ``check``.
    """

    def __init__(self, layout: Layout, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        self._layout, self._run = layout, run

    def exist(self) -> bool:
        """True if the users have their account and the qualities of service exist."""
        ask = ("sacctmgr", "-n", "-P", "show")
        users = self._run(*ask, "user", "format=user,defaultaccount").stdout.splitlines()
        qos = self._run(*ask, "qos", "format=name,preempt").stdout.splitlines()
        return {f"{user}|{ACCOUNT}" for user in _users()} <= set(users) and {"low|", "high|low"} <= set(qos)

    def ensure(self) -> None:
        """Add the cluster, the account, the users and the qualities of service low < high, where they are missing."""
        if self.exist():  # a query is quick, a change is not
            return
        self._sacctmgr("add", "cluster", CLUSTER_NAME)
        self._sacctmgr("add", "account", ACCOUNT, f"Cluster={CLUSTER_NAME}")
        self._sacctmgr("add", "qos", "low", "preemptmode=requeue")
        self._sacctmgr("add", "qos", "high", "preempt=low", "priority=100")
        for user in _users():
            self._sacctmgr("add", "user", user, f"Account={ACCOUNT}", "AdminLevel=Admin")
            limits = (f"defaultaccount={ACCOUNT}", "qos=normal,low,high", "defaultqos=normal")
            self._sacctmgr("modify", "user", user, "set", *limits)

    def _sacctmgr(self, *words: str) -> None:
        """Change the accounting database; it is no error if nothing had to be changed."""
        done = self._run("sacctmgr", "-i", *words, check=False)
        output = (done.stdout + done.stderr).strip()
        if done.returncode != 0 and not re.search(r"already exists|Nothing (new )?(added|modified)", output):
            log = tail(self._layout.log("slurmdbd"))
            raise PrivateSlurmError(f"`sacctmgr {' '.join(words)}` failed: {output}\n{log}")


def _users() -> list[str]:
    """Users that may submit jobs: root, and the user who called sudo."""
    names = ["root", getpass.getuser(), os.environ.get("SUDO_USER", "")]
    known = {entry.pw_name for entry in pwd.getpwall()}
    return [name for name in dict.fromkeys(names) if name in known]
