"""Refuses secrets in the configuration, which is stored: in ``sweep.json``, in submissions and in job scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sweep.config.errors import ConfigError
from sweep.core.jobs.secrets import SecretFinder, is_secret, secrets_in
from sweep.core.settings.spec import ClusterSpec

_FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*[\"']?(\w+)")
_KEPT = (
    "and would be written into the run directory, whose files are kept and given away. Leave it out: export it where "
    "the sweep is started (jobs inherit it), or read it from a file of your own in a line of cluster.slurm.setup: "
    "export NAME=$(cat FILE)."
)


def refuse_secrets(written: object, resolved: object, finder: SecretFinder, place: object = "") -> None:
    """Refuse a configuration that takes a secret from the environment, or holds one.

    Args:
        written: The configuration before its interpolations are resolved.
        resolved: The same, after.
        finder: Knows the environment.
        place: The file that it comes from, for the message.

    Raises:
        ConfigError: Naming the key, never the secret.
    """
    where = f"{place}: " if place else ""
    for key, text in _texts(written):
        for name in filter(is_secret, _FROM_ENVIRONMENT.findall(text)):
            raise ConfigError(f"{where}{key} takes {name} from the environment. It sounds like a secret, {_KEPT}")
    for key, text in _texts(resolved):
        for secret in finder.find(text):
            raise ConfigError(f"{where}{key} holds {secret.shown}. It is a secret, {_KEPT}")


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text with its dotted key, keys of mappings too; what ``notify`` is set to is stored nowhere."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            if (key, name) != ("", "notify"):
                yield key or "a key", str(name)
                yield from _texts(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)


def refuse_named_secrets(found: ClusterSpec) -> None:
    """Refuse variables and a site's own words that are given what sounds like a secret, whatever its value.

    Raises:
        ConfigError: Naming the variable or option.
    """
    for name in found.launch.environment:
        if is_secret(name):
            raise ConfigError(f"cluster.launch.environment.{name} sounds like a secret, {_KEPT}")
    texts = {
        "launch.entry": [" ".join(found.launch.entry)],
        "slurm.setup": found.slurm.setup,
        "slurm.container": [" ".join(found.slurm.container)],
        "slurm.srun_args": [" ".join(found.slurm.srun_args)],
        "slurm.sbatch": [str(value) for value in found.slurm.sbatch.values()],
    }
    for key, name in ((key, name) for key, lines in texts.items() for text in lines for name in secrets_in(text)):
        shown = f"{name} ..." if name.startswith("-") else f"{name}=..."
        raise ConfigError(f"cluster.{key}: {shown} sounds like a secret, {_KEPT}")
