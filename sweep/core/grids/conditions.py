"""Conditions over axis values (``exclude``, ``require``): a small language, parsed and never run by Python."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import Any

from sweep.core.encoding.message import did_you_mean

_Values = Mapping[str, object]
_Answer = Callable[[_Values], Any]
"""A node of a condition, made ready: its value for the axis values it is given."""

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ALLOWED = "names of axes, numbers, quoted text, lists, + - * // %, comparisons (== for equal), in, and, or, not"
_LARGEST = 10**18
_LONGEST = 2000
_DEEPEST = 50


class ConditionError(ValueError):
    """A condition cannot be read, or cannot be answered for the values it was given."""


class Condition:
    """One parsed condition.

    Args:
        text: The condition as the user wrote it, for example ``tp * pp <= 8``.
        names: The names that it may use.

    Raises:
        ConditionError: If the text is not in the language or uses another name.
    """

    def __init__(self, text: str, names: Collection[str]) -> None:
        """Parse and check the whole text once."""
        self.text = text
        reader = _Reader(text, names)
        self._answer = reader.read()
        self.names: frozenset[str] = frozenset(reader.used)

    def holds(self, values: Mapping[str, object]) -> bool:
        """True if the condition holds for the values.

        Raises:
            ConditionError: If it cannot be answered, such as text compared with a number or a division by zero.
        """
        try:
            return bool(self._answer(values))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            used = {name: values.get(name) for name in sorted(self.names)}
            raise ConditionError(f"condition {self.text!r} has no answer for {used}: {error}.") from error


class _Reader:
    """Turns the syntax tree of one condition into functions, and refuses everything outside the language."""

    def __init__(self, text: str, names: Collection[str]) -> None:
        self._text = text
        self._names = names
        self.used: set[str] = set()

    def read(self) -> _Answer:
        shown = self._text if len(self._text) <= 200 else f"{self._text[:200]}..."
        if len(self._text) > _LONGEST:
            raise ConditionError(f"condition {shown!r} is longer than {_LONGEST} characters. Split it into several.")
        try:
            with warnings.catch_warnings():
                # Python warns of "1 is 1" and the like on standard error; such text is refused below.
                warnings.simplefilter("ignore")
                tree = ast.parse(self._text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ConditionError(f"condition {shown!r} cannot be read: {error}. Allowed are {_ALLOWED}.") from error
        return self._node(tree, 0)

    def _node(self, node: ast.AST, depth: int) -> _Answer:
        if depth > _DEEPEST:
            raise ConditionError(f"condition {self._text!r} is nested deeper than {_DEEPEST} levels. Split it.")
        name = _name(node)
        if name is not None:
            return self._axis(name)
        read = _READERS.get(type(node))
        if read is None:
            raise self._refused(type(node).__name__)
        return read(self, node, depth + 1)

    def _refused(self, what: str) -> ConditionError:
        return ConditionError(f"condition {self._text!r} uses {what}, which is not allowed. Allowed are {_ALLOWED}.")

    def _axis(self, name: str) -> _Answer:
        if name not in self._names:
            hint = did_you_mean(name, self._names).strip() or f"Known are {', '.join(sorted(self._names))}."
            raise ConditionError(f"condition {self._text!r} uses the unknown name {name!r}. {hint}")
        self.used.add(name)
        return operator.itemgetter(name)

    def constant(self, node: ast.Constant, depth: int) -> _Answer:
        value = node.value
        if value is not None and not isinstance(value, bool | int | float | str):
            raise self._refused(f"the value {value!r}")
        if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
            raise self._refused(f"a number above {_LARGEST:.0e}")
        return lambda _: value

    def sequence(self, node: ast.List | ast.Tuple, depth: int) -> _Answer:
        items = [self._node(item, depth) for item in node.elts]
        return lambda values: [item(values) for item in items]

    def unary(self, node: ast.UnaryOp, depth: int) -> _Answer:
        operand = self._node(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda values: not operand(values)
        if isinstance(node.op, ast.USub):
            return lambda values: -_number(operand(values))
        raise self._refused(type(node.op).__name__)

    def binary(self, node: ast.BinOp, depth: int) -> _Answer:
        if type(node.op) not in _BINARY:
            raise self._refused(type(node.op).__name__)
        combine, left, right = _BINARY[type(node.op)], self._node(node.left, depth), self._node(node.right, depth)
        return lambda values: _bounded(combine(_number(left(values)), _number(right(values))))

    def logic(self, node: ast.BoolOp, depth: int) -> _Answer:
        items = [self._node(item, depth) for item in node.values]
        joined = all if isinstance(node.op, ast.And) else any
        return lambda values: joined(item(values) for item in items)

    def comparison(self, node: ast.Compare, depth: int) -> _Answer:
        first = self._node(node.left, depth)
        steps = []
        for op, item in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARE:
                raise self._refused(type(op).__name__)
            steps.append((_COMPARE[type(op)], self._node(item, depth)))
        if len(steps) == 1:
            ((compare, second),) = steps
            return lambda values: compare(first(values), second(values))
        return lambda values: _chain(first(values), steps, values)


_READERS: Mapping[type[ast.AST], Callable[[_Reader, Any, int], _Answer]] = {
    ast.Constant: _Reader.constant,
    ast.List: _Reader.sequence,
    ast.Tuple: _Reader.sequence,
    ast.UnaryOp: _Reader.unary,
    ast.BinOp: _Reader.binary,
    ast.BoolOp: _Reader.logic,
    ast.Compare: _Reader.comparison,
}


def _name(node: ast.AST) -> str | None:
    """The axis that a node names; ``trainer.lr`` is one dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _number(value: object) -> int | float | Fraction:
    # Numbers only: 'text' * 10**9 and text % values would be other languages.
    if not isinstance(value, int | float | Fraction):
        raise TypeError(f"arithmetic on {value!r}")
    return value


def _bounded(value: Any) -> Any:
    if not -_LARGEST <= value <= _LARGEST or (isinstance(value, float) and math.isnan(value)):
        raise OverflowError(f"a number above {_LARGEST:.0e}")
    return value


def _equal(left: object, right: object) -> bool:
    # Python says False to 4096 == '4096', and a condition that is never met leaves out nothing, without a word.
    if isinstance(left, str) != isinstance(right, str) and None not in (left, right):
        raise TypeError(f"{left!r} and {right!r} are text and a number: they are never equal")
    return left == right


def _contains(left: object, right: Any) -> bool:
    if isinstance(right, str):
        return operator.contains(right, left)
    return any([_equal(left, item) for item in right])


_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda left, right: not _equal(left, right),
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: _contains,
    ast.NotIn: lambda left, right: not _contains(left, right),
}


def _chain(left: object, steps: list[tuple[Callable[[Any, Any], bool], _Answer]], values: _Values) -> bool:
    """``a < b < c``: each neighbour compared, up to the first that does not hold."""
    for compare, item in steps:
        right = item(values)
        if not compare(left, right):
            return False
        left = right
    return True
