"""Private names of torch and torchao: each exists, its absence is one clear error, and one room alone names them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.processes import ROOT
from trainer.torch_private import names
from trainer.torch_private.names import USES, PrivateNameError, Use

ROOM = ROOT / "trainer" / "torch_private"


@pytest.mark.parametrize(("use", "name"), [(use, name) for use in USES for name in use.names], ids=lambda it: str(it))
def test_torch_has(use: Use, name: str) -> None:
    if name.startswith("torchao"):
        pytest.importorskip("torchao")
    assert name not in use.missing(), f"{use.purpose} needs it; adapt trainer/torch_private"


def test_a_version_that_lacks_names_is_refused_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda package: "2.99.0")
    use = Use(
        purpose="ring attention",
        names=("torch:_foreach_mul_", "torch:_gone", "torch._gone.room:_door", "torch:nn._no_window"),
        versions="2.10 to 2.14",
    )
    with pytest.raises(PrivateNameError) as caught:
        use.require()
    assert str(caught.value) == (
        "torch 2.99.0 lacks private names that ring attention needs: torch:_gone, torch._gone.room:_door, "
        "torch:nn._no_window. torch 2.10 to 2.14 has them (tested: 2.13). Install such a version, or adapt "
        "trainer/torch_private."
    )


def test_one_of_several_alternatives_is_enough() -> None:
    Use(purpose="a test", names=("torch:_gone|_foreach_mul_",)).require()


def test_the_names_of_every_run_are_checked_before_any_is_imported() -> None:
    program = (
        "from trainer.torch_private import names\n"
        "import dataclasses\n"
        "names.EVERY_RUN = dataclasses.replace(names.EVERY_RUN, names=('torch:_gone', 'torch:_gone_too'))\n"
        "import trainer.training.session\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "lacks private names that every run needs: torch:_gone, torch:_gone_too." in done.stderr.splitlines()[-1]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(source: str) -> list[str]:
    """Private names of other packages that a module imports, reads, or names in a string for getattr."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "getattr",
            "setattr",
            "hasattr",
            "import_module",
        ):
            found += [f"a.{arg.value}" for arg in node.args if isinstance(arg, ast.Constant)]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [f"{ast.unparse(target)}._patched" for target in targets if is_torchs(target)]
    own = ("self.", "cls.", "os._exit", "__future__")
    return [name for name in found if any(map(is_private, name.split(".")[1:])) and not name.startswith(own)]


def is_torchs(target: ast.expr) -> bool:
    """True if an assignment to it would patch torch."""
    return isinstance(target, ast.Attribute) and ast.unparse(target).partition(".")[0] in ("torch", "dist", "nn", "F")


def modules() -> list[Path]:
    return [path for path in sorted((ROOT / "trainer").rglob("*.py")) if ROOM not in path.parents]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_names_a_private_name(path: Path) -> None:
    assert private_names(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from torch.distributed._tensor import DTensor",
        "from torch import _C",
        "import torch._inductor",
        "mesh._flatten('x')",
        "getattr(torch, '_C')",
        "torch.UntypedStorage.resize_ = resize",
    ],
)
def test_each_way_to_name_one_is_seen(source: str) -> None:
    assert private_names(source)


def test_every_private_name_of_the_room_is_in_the_list() -> None:
    listed = {
        part for use in USES for name in use.names for part in name.replace("|", ".").replace(":", ".").split(".")
    }
    optional = {
        "_dump_nccl_trace",
        "_dump_fr_trace",
        "_distributed_c10d",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "_mxfp8_cuda_kernels_available",
        "_schema",  # attributes of instances, which a class does not show
        "_user_meta",
    }
    used = {
        node.attr
        for path in ROOM.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not ast.unparse(node).startswith("self.")
    }
    assert used - listed == optional - {"_dump_nccl_trace", "_dump_fr_trace", "_mxfp8_cuda_kernels_available"}
    assert names.EVERY_RUN in USES
