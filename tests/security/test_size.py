"""A plan that would take the machine's memory is refused before any of it is made, with the number and the limit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sweep.config import ConfigError, load
from sweep.core.cells.axes import GridError
from sweep.core.cells.batch import BatchKind
from sweep.core.grids.grid import Grid, check

MANY = f"[{','.join(map(str, range(1, 1201)))}]"
BILLION = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def refused(*words: str, config_dir: Path | None = None) -> str:
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load(["cluster=local", *words] if config_dir is None else words, config_dir=config_dir)
    assert time.process_time() - began < 10
    return str(caught.value)


def test_a_product_of_axes_is_multiplied_and_not_made() -> None:
    text = refused("+grid=weak_scaling", f"nodes={MANY}", f"seq_len={MANY}", "tp=[1,2,4,8,16,32,64,128,256,512]")
    assert "asks for 14,400,000 combinations; at most 100,000 are made" in text
    assert "max_combinations=14400000" in text


def test_the_limit_is_a_setting() -> None:
    words = ("+grid=weak_scaling", "nodes=[1,2,3]", "tp=[1,2]")
    assert "asks for 6 combinations; at most 5 are made" in refused(*words, "max_combinations=5")
    load(["cluster=local", *words, "max_combinations=6"])


def test_zips_and_explicit_cells_count() -> None:
    def grid(limit: int) -> Grid:
        return Grid(
            name="g",
            batch_kind=BatchKind.GLOBAL_BATCH,
            axes={"gpus_per_node": (1, 2)},
            zips=({"nodes": (1, 2, 3), "seq_len": (1, 2, 3)},),
            cells=({"tp": (1, 2)}, {"nodes": (4,), "seq_len": (4,), "tp": (1,)}),
            models={},
            max_combinations=limit,
        )

    with pytest.raises(GridError, match="asks for 14 combinations; at most 13"):
        check(grid(13))
    check(grid(14))


@pytest.mark.parametrize("text", ["range(0,1000000000)", "shuffle(range(0,1000000000))", "range(0,1e9,0.5)"])
def test_a_range_is_refused_and_not_listed(text: str) -> None:
    assert len(refused("+grid=weak_scaling", f"nodes={text}")) < 2000


def test_aliases_of_aliases_are_counted_and_not_written_out(tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "bomb.yaml").write_text(BILLION)
    text = refused("+grid=bomb", "cluster=local", config_dir=tmp_path)
    assert "values once its aliases (*NAME) are written out; at most 100,000 are read" in text


@pytest.mark.parametrize("doubled", ["${.E%d}${.E%d}", "${cluster.launch.environment.E%d}" * 2])
def test_interpolations_of_interpolations_are_counted_and_not_written_out(tmp_path: Path, doubled: str) -> None:
    (tmp_path / "cluster").mkdir()
    lines = [f"    E{n}: {doubled % (n - 1, n - 1)}" for n in range(1, 40)]
    text = "\n".join(["launch:", "  environment:", "    E0: x", *lines])
    (tmp_path / "cluster" / "bomb.yaml").write_text(text + "\n")
    assert "stands for more than 100,000 values once its interpolations (${...})" in refused(
        "+grid=weak_scaling", "cluster=bomb", config_dir=tmp_path
    )


@pytest.mark.parametrize("entry", ["d%d", "d%d@package.at%d", "{grid: d%d}"])
def test_defaults_that_name_each_other_are_counted_and_not_read(tmp_path: Path, entry: str) -> None:
    (tmp_path / "grid").mkdir()
    for level in range(7):
        entries = [entry.replace("%d", str(level + 1), 1).replace("%d", str(n)) for n in range(10)]
        text = f"defaults: [{', '.join(entries)}]\n" if level < 6 else "axes: {}\n"
        (tmp_path / "grid" / f"d{level}.yaml").write_text(text)
    text = refused("+grid=d0", "cluster=local", config_dir=tmp_path)
    assert "stands for 1,111,111 files by the defaults that it names" in text


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "large.yaml").write_text("#" * 1_000_001)
    assert "has 1,000,001 bytes; at most 1,000,000 are read" in refused(
        "+grid=large", "cluster=local", config_dir=tmp_path
    )
