from __future__ import annotations

import warnings
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sweep.core.grids.conditions import Condition, ConditionError

NAMES = {"nodes", "tp", "pp", "model", "compile", "micro_batch", "trainer.lr", "global_batch"}
VALUES = {
    "nodes": 4,
    "tp": 2,
    "pp": 1,
    "model": "llama2_7b",
    "compile": False,
    "micro_batch": None,
    "trainer.lr": 3e-4,
    "global_batch": 512,
}


def holds(text: str, **changes: object) -> bool:
    return Condition(text, NAMES).holds({**VALUES, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "nodes == 4",
        "  nodes == 4 ",
        "nodes != 5",
        "tp * pp <= 8",
        "1 < tp <= 2",
        "tp < nodes > pp",
        "nodes in [1, 2, 4]",
        "nodes in (4,)",
        "nodes not in [8]",
        "'7b' in model",
        "model in ['llama2_7b', 'llama2_70b']",
        "model == 'llama2_7b' and not compile",
        "compile or tp == 2",
        "not (compile or pp > 1)",
        "global_batch // nodes == 128",
        "global_batch % nodes == 0",
        "-tp + 3 == pp",
        "nodes - 3 == pp",
        "micro_batch == None",
        "micro_batch != 2",
        "trainer.lr < 1e-3",
        "compile == False",
        "[tp, pp] == [2, 1]",
        "1",
    ],
)
def test_a_condition_says_what_python_would(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text", ["nodes == 5", "1 < tp < 2", "compile", "nodes in []", "'13b' in model", "tp > 1 and pp > 1", "micro_batch"]
)
def test_a_condition_that_is_not_met_does_not_hold(text: str) -> None:
    assert not holds(text)


def test_a_condition_knows_the_names_that_it_uses() -> None:
    assert Condition("tp * trainer.lr > 1 and '7b' in model", NAMES).names == {"tp", "trainer.lr", "model"}


def test_fractions_are_compared_exactly() -> None:
    assert holds("global_batch == 0.5", global_batch=Fraction(1, 2))
    assert holds("global_batch * 3 == 1", global_batch=Fraction(1, 3))


HOSTILE = [
    "__import__('os').system('touch pwned')",
    "open('pwned', 'w')",
    "nodes.__class__",
    "nodes.real",
    "().__class__.__bases__[0].__subclasses__()",
    "trainer.__class__",
    "trainer.lr.real",
    "model.upper() == 'X'",
    "len(model) > 3",
    "[x for x in [1]]",
    "(lambda: 1)()",
    "(nodes := 3)",
    "nodes if tp else pp",
    "model[0] == 'l'",
    "model[0:3] == 'lla'",
    "{'a': 1}",
    "{1, 2}",
    "f'{nodes}'",
    "b'x' == b'x'",
    "1j == 1j",
    "...",
    "nodes is 4",
    "nodes is not None",
    "9 ** 9 ** 9 > 1",
    "2 << 1000000000",
    "nodes / 2 == 2",
    "nodes @ tp",
    "nodes & tp",
    "~nodes",
    "+nodes == 4",
    "*nodes",
    "[*[1]]",
    "await nodes",
    "yield",
    "nodes == 4; tp == 2",
    "import os",
    "nodes = 4",
    "",
    "   ",
    "nodes ==",
    "\0",
    "nodes \ud800",
    "9" * 5000,
    "1" + "0" * 30 + " > nodes",
    "1e999 > nodes",
    "(" * 300 + "nodes" + ")" * 300,
    "not " * 400 + "nodes",
    "-" * 1500 + "1",
    "1" + "+1" * 900 + " > nodes",
    "[" * 90 + "]" * 90,
    "nodes == 4 or " * 1000 + "tp == 2",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:30]))
def test_what_is_not_in_the_language_is_refused_and_never_run(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConditionError) as caught:
            Condition(text, NAMES)
    assert len(str(caught.value)) < 3000
    assert list(tmp_path.iterdir()) == []


def test_deep_but_readable_conditions_are_read() -> None:
    assert holds(" and ".join(f"nodes != {number}" for number in range(10, 100)))
    assert holds("(" * 40 + "nodes" + ")" * 40 + " == 4")


def test_an_unknown_name_answers_with_the_nearest_ones() -> None:
    with pytest.raises(ConditionError, match=r"unknown name 'node'\. Did you mean nodes"):
        Condition("node > 1", NAMES)
    with pytest.raises(ConditionError, match=r"unknown name 'zz'. Known are .*nodes.*trainer\.lr"):
        Condition("zz > 1", NAMES)
    with pytest.raises(ConditionError, match=r"unknown name 'trainer\.lx'. Did you mean trainer\.lr"):
        Condition("trainer.lx > 1", NAMES)


def test_a_refusal_says_what_is_allowed() -> None:
    with pytest.raises(ConditionError, match=r"uses Call, which is not allowed\. Allowed are names of axes, numbers"):
        Condition("max(tp, pp) > 1", NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "nodes > 'four'",
        "model > 3",
        "micro_batch > 1",
        "nodes // 0 == 1",
        "nodes % (pp - 1) == 0",
        "model * 3 == 'x'",
        "-model == 1",
        "3 in nodes",
        "4 in model",
        "'%s' % nodes == '4'",
        "[1] * 3 == [1, 1, 1]",
        "nodes * 1000000000000000000 > 1",
        "trainer.lr * 1000000000000000000 * 1000000000000000000 > 1",
    ],
)
def test_a_question_without_an_answer_is_an_error_that_shows_the_values(text: str) -> None:
    with pytest.raises(ConditionError, match=r"has no answer for \{"):
        holds(text)


@pytest.mark.parametrize(
    "text", ["nodes == '4'", "nodes != '4'", "model == 7", "nodes in ['4', '8']", "nodes not in ['4']"]
)
def test_text_is_never_silently_unequal_to_a_number(text: str) -> None:
    with pytest.raises(ConditionError, match="are text and a number: they are never equal"):
        holds(text)


NUMBERS = st.integers(min_value=-50, max_value=50).map(str)
ATOMS = st.sampled_from(["nodes", "tp", "pp", "compile", "global_batch"]) | NUMBERS


def _arithmetic(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")


def _logic(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    both = st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    return both | inner.map(lambda text: f"(not {text})")


NUMERIC = st.recursive(ATOMS, _arithmetic, max_leaves=6)
COMPARISON = st.tuples(
    NUMERIC, st.lists(st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), NUMERIC), min_size=1, max_size=3)
).map(lambda t: "(" + t[0] + "".join(f" {op} {right}" for op, right in t[1]) + ")")
MEMBERSHIP = st.tuples(NUMERIC, st.sampled_from(["in", "not in"]), st.lists(NUMERIC, max_size=3)).map(
    lambda t: f"({t[0]} {t[1]} [{', '.join(t[2])}])"
)
CONDITIONS = st.recursive(COMPARISON | MEMBERSHIP, _logic, max_leaves=5)


@given(text=CONDITIONS, nodes=st.integers(1, 2048), tp=st.integers(1, 16), compile=st.booleans())
def test_every_condition_in_the_language_means_what_it_means_in_python(
    text: str, nodes: int, tp: int, compile: bool
) -> None:
    values = {**VALUES, "nodes": nodes, "tp": tp, "compile": compile}
    assume(len(text) < 2000)
    try:
        expected = bool(eval(text, {"__builtins__": {}}, dict(values)))
    except ZeroDivisionError:
        with pytest.raises(ConditionError):
            Condition(text, NAMES).holds(values)
        return
    try:
        found = Condition(text, NAMES).holds(values)
    except ConditionError as error:
        assume(not any(limit in str(error) for limit in ("above 1e+18", "nested deeper")))
        raise
    assert found is expected


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_a_condition_error(text: str) -> None:
    with suppress(ConditionError):
        Condition(text, NAMES).holds(VALUES)
