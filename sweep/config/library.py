"""Finds and reads configuration files, the user's folder first, and bounds the ``defaults`` that a folder may have."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # omegaconf brings it, without types
from omegaconf import OmegaConf

from sweep.config.errors import ConfigError, listed
from sweep.config.secrets import refuse_secrets
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.message import did_you_mean
from sweep.core.jobs.secrets import SecretFinder

GROUPS = ("grid", "cluster", "trainer", "policy", "model", "hardware")
PRIMARY = "config"
MAX_FILE_BYTES = 1_000_000
MAX_VALUES = 100_000
"""The most values for which the aliases of a file, or the interpolations of a text, may stand."""
# `${a.b}` from the root, `${.a}` beside the text, `${..a}` one mapping above. `${oc.env:A}` is one value.
_REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")
_Path = tuple[str, ...]
_ARTICLE = {"hardware": "device"}


def shipped_conf(package: Path | None = None) -> Path:
    """The shipped ``conf``: inside the package where it is installed, beside it in a checkout.

    Raises:
        ConfigError: If it is in neither place.
    """
    package = package or Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{PRIMARY}.yaml").is_file():
            return folder
    raise ConfigError(f"The shipped configuration is neither in {package} nor beside it. Install the package again.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """Configuration files by group and name.

    Attributes:
        shipped: The folder that comes with the package.
        own: The user's folder, searched first.
        secrets: Finds secrets, which no file may hold.
    """

    shipped: Path
    own: Path | None = None
    secrets: SecretFinder

    @classmethod
    def at(cls, config_dir: Path | None, environ: Mapping[str, str] | None = None) -> Library:
        """The library of the shipped files and, before them, of a user's folder.

        Args:
            config_dir: The user's folder.
            environ: The environment whose secrets no file may hold; None: the process's own.

        Raises:
            ConfigError: If the folder does not exist, holds a root file, or its files name each other too many times.
        """
        secrets = SecretFinder(os.environ if environ is None else environ)
        if config_dir is None:
            return cls(shipped=shipped_conf(), secrets=secrets)
        own = config_dir.expanduser().resolve()
        if not own.is_dir():
            raise ConfigError(f"--config-dir {config_dir}: there is no such folder.")
        if (own / f"{PRIMARY}.yaml").exists():
            raise ConfigError(
                f"{own / PRIMARY}.yaml would take the place of the tool's own root. Rename it; a folder for "
                f"--config-dir holds files in {', '.join(f'{group}/' for group in GROUPS)}."
            )
        from sweep.config.library import refuse_many_defaults  # only for a user's own folder

        refuse_many_defaults(own)
        return cls(shipped=shipped_conf(), own=own, secrets=secrets)

    def _folders(self, group: str) -> list[Path]:
        return [folder / group for folder in (self.own, self.shipped) if folder is not None]

    def names(self, group: str) -> tuple[str, ...]:
        """Names of the files of a group, sorted."""
        return tuple(sorted({path.stem for folder in self._folders(group) for path in folder.glob("*.yaml")}))

    def path(self, group: str, name: str) -> Path:
        """The file of that name; a user's own before a shipped one.

        Raises:
            ConfigError: If there is none; the message names the nearest ones.
        """
        if name in self.names(group):
            for folder in self._folders(group):
                if (folder / f"{name}.yaml").is_file():
                    return _readable(folder / f"{name}.yaml")
        known = self.names(group)
        what = _ARTICLE.get(group, group)
        raise ConfigError(f"There is no {what} {name!r}. {did_you_mean(name, known)}There are: {listed(known)}.")

    def read(self, group: str, name: str) -> dict[str, Any]:
        """The content of the file of that name.

        Raises:
            ConfigError: If there is none, it cannot be read, or it holds a secret.
        """
        path = self.path(group, name)
        try:
            loaded = OmegaConf.load(path)
            written = OmegaConf.to_container(loaded)
            refuse_expansions(written, path)
            content = OmegaConf.to_container(loaded, resolve=True)
        except ConfigError:
            raise
        except Exception as error:  # yaml, omegaconf and the file system each raise their own
            raise unreadable(error, path) from error
        refuse_secrets(written, content, self.secrets, path)
        if not isinstance(content, dict):
            raise ConfigError(f"{path} does not hold `name: value` lines but {type(content).__name__}.")
        return {str(key): value for key, value in content.items()}


def _readable(path: Path) -> Path:
    """The path, unless what it holds would take the machine's memory.

    Raises:
        ConfigError: If the file is too large, or its aliases stand for too many values.
    """
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has {size:,} bytes; at most {MAX_FILE_BYTES:,} are read. Split it, or shorten it.")
    text = path.read_text(errors="replace")
    if "&" in text and "*" in text:
        try:
            total = _values_in(yaml.compose(text), {})
        except (yaml.YAMLError, RecursionError) as error:
            raise unreadable(error, path) from error
        if total > MAX_VALUES:
            raise ConfigError(
                f"{path} stands for {total:,} values once its aliases (*NAME) are written out; at most {MAX_VALUES:,} "
                "are read. Use fewer aliases of aliases."
            )
    return path


def _values_in(node: yaml.Node | None, known: dict[int, int]) -> int:
    """The number of values below a node and itself; aliases are counted as often as they are named."""
    if node is not None and id(node) not in known:
        known[id(node)] = 0  # a node within itself
        below = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + (sum(_values_in(part, known) for part in below) if isinstance(below, list) else 0)
    return known.get(id(node), 0)


def refuse_expansions(written: object, place: object = "") -> None:
    """Refuse a configuration in which a text stands for too many others.

    Args:
        written: The configuration before its interpolations are resolved.
        place: The file that it comes from, for the message.

    Raises:
        ConfigError: Naming the key and the limit.
    """
    texts, below = dict[_Path, str](), dict[_Path, list[_Path]]()
    _collect(written, (), texts, below)
    known: dict[_Path, int] = {}
    for path in texts:
        try:
            total = _values_named(path, texts, below, known)
        except RecursionError:
            total = MAX_VALUES + 1
        if total > MAX_VALUES:
            where = f"{place}: " if place else ""
            raise ConfigError(
                f"{where}{'.'.join(path)} stands for more than {MAX_VALUES:,} values once its interpolations "
                "(${...}) are written out. Use fewer interpolations of interpolations."
            )


def _collect(value: Any, path: _Path, texts: dict[_Path, str], below: dict[_Path, list[_Path]]) -> None:
    """Collect every text with an interpolation, and the parts of every mapping and list."""
    if isinstance(value, str) and "${" in value:
        texts[path] = value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        below.setdefault(path, []).append((*path, str(name)))
        _collect(part, (*path, str(name)), texts, below)


def _values_named(
    path: _Path, texts: dict[_Path, str], below: dict[_Path, list[_Path]], known: dict[_Path, int]
) -> int:
    """Values that a node stands for; a node that names itself is refused where it is resolved."""
    if path not in known:
        known[path] = 0
        named = list(below.get(path, ()))
        for dots, name in _REFERENCE.findall(texts.get(path, "")):
            named.append((*(path[: -len(dots)] if dots else ()), *name.split(".")))
        known[path] = 1 + sum(_values_named(other, texts, below, known) for other in named)
    return known[path]


def unreadable(error: BaseException, path: Path | None = None) -> ConfigError:
    """The error for a file that cannot be read, with the line where it is known."""
    cause: BaseException | None = error
    while cause is not None:
        mark = getattr(cause, "problem_mark", None)
        if mark is not None:
            problem = getattr(cause, "problem", None) or "not YAML"
            place = path or mark.name
            return ConfigError(f"{place}, line {mark.line + 1}, column {mark.column + 1}: {problem}.")
        cause = cause.__cause__ or cause.__context__
    first = "\n".join(line for line in str(error).splitlines() if line.strip())[:2000]
    return ConfigError(f"{path}: {first}" if path else first)


def available(group: str, config_dir: Path | None = None) -> dict[str, str]:
    """Names in a group (``grid``, ``cluster``, ``trainer``, ``model``, ``hardware``), each with its description.

    Raises:
        ConfigError: If a file cannot be read.
    """
    library = Library.at(config_dir)
    return {name: str(library.read(group, name).get("description", "")) for name in library.names(group)}


MAX_DEFAULTS = 1_000
"""Files that one file may stand for."""


def refuse_many_defaults(folder: Path) -> None:
    """Refuse a folder in which a file stands for too many others.

    Raises:
        ConfigError: Naming the file, the number and the limit.
    """
    named: dict[str, list[str]] = {}
    for path in folder.rglob("*.yaml"):
        try:
            if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                continue
            text = path.read_text(errors="replace")
            root = yaml.compose(text) if "defaults" in text else None
        except (OSError, yaml.YAMLError, RecursionError):
            continue  # whoever reads the file says what is wrong with it
        for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
            if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
                # Of `group/name@package` and `group: [name, name]` the names.
                texts = [node.value for node in _scalars(value)]
                named.setdefault(path.stem, []).extend(str(text).partition("@")[0].split("/")[-1] for text in texts)
    known: dict[str, int] = {}
    for name in named:
        if (total := _files_of(name, named, known)) > MAX_DEFAULTS:
            raise ConfigError(
                f"{name} in {folder} stands for {total:,} files by the defaults that it names, which name others; "
                f"at most {MAX_DEFAULTS:,} are read. Name fewer."
            )


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    for part in node.value if not isinstance(node, yaml.ScalarNode) else ():
        yield from _scalars(part[1] if isinstance(part, tuple) else part)


def _files_of(name: str, named: Mapping[str, list[str]], known: dict[str, int]) -> int:
    """Files that are read for one file; one that names itself is refused where it is composed."""
    if name not in known:
        known[name] = 1
        known[name] = 1 + sum(_files_of(other, named, known) for other in named.get(name, ()))
    return known[name]
