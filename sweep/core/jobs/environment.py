"""Which environment variables are kept with a run, which are scrubbed before a job, and which hold secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_RELEVANT = re.compile(
    r"^(NCCL|RCCL|GLOO|CUDA|TORCH|PYTORCH|TORCHINDUCTOR|OMP|MKL|KMP|GOMP|OPENBLAS|SLURM|UCX|FI|NVTE|HSA|HIP|ROCR|SWEEP)_"
    r"|^(MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK|LD_PRELOAD|PYTHONSAFEPATH|PYTHONPATH)$"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
# A job started inside another job inherits its binding: SLURM_CPU_BIND alone has made runs three times slower.
_INHERITED = re.compile(
    r"^(SLURM|SLURMD|SBATCH|SRUN|SALLOC|PMIX|PMI|OMPI|TORCHELASTIC)_|^(MASTER_ADDR|MASTER_PORT|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE"
    r"|GROUP_RANK|ROLE_RANK|ROLE_WORLD_SIZE|NODE_RANK)$"
)
_KEPT_OF_INHERITED = ("SLURM_CONF",)
REDACTED = "(redacted)"


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change a number, sorted by name, with anything named like a secret redacted."""
    return {
        name: REDACTED if _SECRET.search(name) else value
        for name, value in sorted(environ.items())
        if _RELEVANT.search(name)
    }


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what an enclosing job or torchrun left in it; ``SLURM_CONF`` stays."""
    return {name: value for name, value in environ.items() if not _INHERITED.search(name) or name in _KEPT_OF_INHERITED}


# A whole word of the name, so that TOKENIZERS_PARALLELISM and MAX_TOKENS are none.
_HOLDS_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|API_?KEY|ACCESS_KEY|SECRET|CREDENTIALS?|COOKIE|JWT|AUTHORIZATION)(?:_|$)"
    r"|(?:PASSWORD|PASSWD|PASSPHRASE)(?:_|$)|(?:_|PG)PASS$|_KEY$",
    re.IGNORECASE,
)
_NAMES_FILE = re.compile(r"_(?:FILE|PATH|DIR)$", re.IGNORECASE)
_WORD = re.compile(r"\w+")


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds what must not be written down."""
    return _HOLDS_SECRET.search(name) is not None and not _NAMES_FILE.search(name)


# What begins with $ or ` is read when the line is run, and is not in the text itself.
_LITERAL = re.compile(r"(?<!\w)(\w+)=(?=[\"']?[^\s\"'$`])")


def secrets_in(text: str) -> list[str]:
    """Names of variables in shell text, or a command's words, that are given what sounds like a secret as it is."""
    return [name for name in _LITERAL.findall(text) if is_secret(name)]


_NOTIFY = re.compile(r"\+*notify\b")
_ASSIGNMENT = re.compile(r"^(\+*[\w.@/-]+)=(.+)$", re.DOTALL)


def redacted_text(word: str) -> str:
    """A word of a command line; the value of ``name=value`` is redacted where a name in it sounds like a secret.

    What ``notify`` is set to is always.
    """
    match = _ASSIGNMENT.match(word)
    # Of the user's own command nothing is known: an address may be all that guards a channel.
    is_kept = match is None or not (
        _SECRET.search(match[1]) or _NOTIFY.match(match[1]) or any(map(is_secret, _WORD.findall(match[2])))
    )
    if match is None or is_kept:
        return word
    return f"{match[1]}={REDACTED}"
