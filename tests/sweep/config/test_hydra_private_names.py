"""Hydra's names that are private, or not documented, and that sweep/config/hydra_api.py relies on.

A failure here names what a new version of Hydra changed. Mend sweep/config/hydra_api.py, and only then raise the upper
bound in pyproject.toml.
"""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from packaging.requirements import Requirement

from sweep.config.hydra_api import GrammarError, parse_override


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (OverridesParser, "create", ["config_loader"]),
        (OverridesParser, "parse_override", ["self", "s"]),
        (Override, "is_delete", ["self"]),
        (Override, "is_sweep_override", ["self"]),
        (Override, "sweep_string_iterator", ["self"]),
        (Override, "value", ["self"]),
        (Plugins, "register", ["self", "clazz"]),
        (GlobalHydra, "clear", ["self"]),
        (SearchPathPlugin, "manipulate_search_path", ["self", "search_path"]),
        (ConfigSearchPath, "prepend", ["self", "provider", "path", "anchor"]),
        (hydra.initialize_config_dir, "__init__", ["self", "config_dir", "job_name", "version_base"]),
    ],
)
def test_each_method_has_the_parameters_that_the_module_passes(owner: Any, name: str, parameters: list[str]) -> None:
    method = getattr(owner, name, None)
    found = "missing" if method is None else list(inspect.signature(method).parameters)
    assert found == parameters, f"Hydra {hydra.__version__} changed {owner.__name__}.{name}"


def test_an_override_has_the_fields_that_are_read() -> None:
    override = parse_override("a.b@c=1")
    assert (override.key_or_group, override.package, override.value()) == ("a.b", "c", 1)
    assert override.is_delete() is False
    assert list(parse_override("a=1,2").sweep_string_iterator()) == ["1", "2"]
    assert parse_override("~a").is_delete()


@pytest.mark.parametrize(("text", "column"), [("nodes=[1,2", 10), ("nodes=a>b", 7)])
def test_an_error_of_the_grammar_says_where_it_stopped(text: str, column: int) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_override(text)
    assert caught.value.column == column, f"Hydra {hydra.__version__} keeps the place of an error elsewhere"


def test_the_global_state_is_one_object_whose_hydra_can_be_taken_and_put_back() -> None:
    state = GlobalHydra.instance()
    assert state is GlobalHydra.instance()
    assert state.hydra is None
    assert not state.is_initialized()


@pytest.mark.parametrize(
    ("package", "within", "outside"), [("hydra-core", "1.3.8", "1.4"), ("omegaconf", "2.3.1", "2.4")]
)
def test_a_version_that_was_not_tried_is_not_installed(package: str, within: str, outside: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (found,) = (item for item in map(Requirement, project["dependencies"]) if item.name == package)
    assert found.specifier.contains(within)
    assert found.specifier.contains(version(package))
    assert not found.specifier.contains(outside)
