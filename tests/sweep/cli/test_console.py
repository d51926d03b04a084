"""What goes to a pipe says what a terminal shows, without styles."""

from __future__ import annotations

import io

from rich.markup import escape

from sweep.cli.console import PlainConsole


def test_styles_are_left_out_and_text_that_only_looks_like_one_is_kept() -> None:
    stream = io.StringIO()
    PlainConsole(stream).print(f"[yellow]note:[/yellow] {escape('tp=[1,2] and [bold]')}", highlight=False)
    PlainConsole(stream).print("[1,2] [x]", markup=False)
    assert stream.getvalue() == "note: tp=[1,2] and [bold]\n[1,2] [x]\n"


def test_a_table_has_columns_as_wide_as_their_widest_cell_and_cuts_nothing() -> None:
    stream = io.StringIO()
    why = "because " * 40
    PlainConsole(stream).print_table(["cell", "GPUs", "why"], [["ab", "16", why], ["abcdef", "8", "x"]], right={"GPUs"})
    assert stream.getvalue().splitlines() == ["cell    GPUs  why", f"ab        16  {why.rstrip()}", "abcdef     8  x"]
