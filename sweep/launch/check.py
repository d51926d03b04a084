"""Starts a module of a snapshot of the code once every file of the snapshot was found to be as submitted.

``python -I -S -c TEXT SNAPSHOT HASH -m MODULE OPTIONS...``, where TEXT is this file. The job script holds it, and the
scheduler holds the job script: nobody alters the check by what lies in a run directory. So it imports nothing of ours.
"""

import contextlib
import hashlib
import itertools
import json
import os
import stat
import sys
import time
from pathlib import Path

EXIT_REFUSED = 2


def unsafe(path: Path) -> str:
    """Why a file or folder may be the work of others; empty where this user alone can change it."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        return f"{path} is a link or no regular file"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to user {found.st_uid}, and the job to user {os.geteuid()}"
    return f"others can change {path} (mode {stat.S_IMODE(found.st_mode):o})" if found.st_mode & 0o022 else ""


def alteration(snapshot: Path, asked: str) -> str:
    """Why a snapshot is not the one with this hash, or not of this user alone; empty where it is both."""
    if not snapshot.is_dir():
        return f"the sources in {snapshot} are missing"
    paths = sorted(snapshot.rglob("*"), key=lambda path: path.relative_to(snapshot).as_posix())
    for path in (snapshot, *paths):
        if problem := unsafe(path):
            return f"the sources are not safe: {problem}"
    total = hashlib.sha256()
    for path in paths:
        if path.is_file():
            content = path.read_bytes()
            total.update(f"{path.relative_to(snapshot).as_posix()}\0{len(content)}\0".encode() + content)
    found = total.hexdigest()[:16]
    return "" if found == asked else f"the sources in {snapshot} hash to {found}, not {asked}"


def refusal(snapshot: Path, asked: str, submission: str) -> str:
    """Why nothing may be started; empty where code and submission are unaltered and of this user."""
    files = [Path(submission)] if submission else []
    try:
        for folder in {snapshot.parent, snapshot.parent.parent, *(file.parent for file in files)}:
            mode = folder.stat().st_mode
            if mode & 0o022 and not mode & stat.S_ISVTX:
                return f"others can rename what lies in {folder}; chmod +t keeps them from it"
        problems = [*filter(None, map(unsafe, files)), alteration(snapshot, asked)]
    except OSError as error:
        return f"the sources in {snapshot} cannot be checked: {error}"
    return problems[0] and f"{problems[0]}. Nothing was started; the same command submits anew, with a new snapshot."


def report(message: str, options: dict[str, str]) -> None:
    """Leave an error file in the folder of the attempt, as the launcher would, unless others may own it."""
    file = Path(options["--submission"])
    if unsafe(file):
        return
    index = options.get("--index") or os.environ.get("SLURM_ARRAY_TASK_ID", "0")
    node = options.get("--node-rank") or os.environ.get("SLURM_NODEID", "0")
    restart = options.get("--restart") or os.environ.get("SLURM_RESTART_COUNT", "0")
    folder = file.parent.parent / json.loads(file.read_text())["tasks"][int(index)]["directory"]
    if int(restart):
        folder /= f"restart-{restart}"
    folder.mkdir(parents=True, exist_ok=True)
    error = {"schema": 1, "kind": "error", "rank": None, "node_rank": int(node), "time": time.time()}
    error |= {"error_class": "refused", "message": message}
    if not unsafe(folder):
        draft = folder / f".refusal-{node}-{os.getpid()}"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as stream:
                json.dump(error, stream)
            draft.replace(folder / f"error-node-{node}.json")
        finally:
            draft.unlink(missing_ok=True)


def main() -> None:
    """Become the module, or end with :data:`EXIT_REFUSED`."""
    snapshot, asked, *command = sys.argv[1:]
    options = dict(itertools.pairwise(command))
    if message := refusal(Path(snapshot), asked, options.get("--submission", "")):
        print(f"launch: {message}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError, ValueError, LookupError):
            report(message, options)
        sys.exit(EXIT_REFUSED)
    paths = [snapshot, os.environ.get("PYTHONPATH", "")]
    # Compiled files beside the modules would make the snapshot an altered one for the next job.
    flags = {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ.update(flags, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
