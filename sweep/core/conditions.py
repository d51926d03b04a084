"""Conditions over axis values (``exclude``, ``require``): a small language, parsed and never run by Python."""

from __future__ import annotations

import ast
import difflib
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_ALLOWED = "names of axes, numbers, quoted text, lists, + - * // %, comparisons, in, and, or, not"
_LARGEST = 10**18


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
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ConditionError(f"condition {text!r} cannot be read: {error}. Allowed are {_ALLOWED}.") from error
        for node in _nodes(self._tree):
            self._check(node, names)
        found = (_name(node) for node in _nodes(self._tree))
        self.names: frozenset[str] = frozenset(name for name in found if name is not None)

    def _check(self, node: ast.AST, names: Collection[str]) -> None:
        name = _name(node)
        if name is not None and name not in names:
            near = difflib.get_close_matches(name, sorted(names), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else f" Known are {', '.join(sorted(names))}."
            raise ConditionError(f"condition {self.text!r} uses the unknown name {name!r}.{hint}")
        if not _is_allowed(node):
            shown = type(node).__name__
            raise ConditionError(f"condition {self.text!r} uses {shown}, which is not allowed. Allowed are {_ALLOWED}.")

    def holds(self, values: Mapping[str, object]) -> bool:
        """Whether the condition is true of the values.

        Raises:
            ConditionError: If it cannot be answered, such as text compared with a number or a division by zero.
        """
        try:
            return bool(_value(self._tree, values))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            used = {name: values.get(name) for name in sorted(self.names)}
            raise ConditionError(f"condition {self.text!r} has no answer for {used}: {error}.") from error


def _name(node: ast.AST) -> str | None:
    """The axis that a node names; ``trainer.lr`` is one dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of the tree, a dotted name counting as one."""
    yield tree
    if not isinstance(tree, ast.Attribute):
        for child in ast.iter_child_nodes(tree):
            yield from _nodes(child)


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None or isinstance(node.value, bool | int | float | str)
    if isinstance(node, ast.BinOp):
        return type(node.op) in _BINARY
    if isinstance(node, ast.UnaryOp):
        return type(node.op) in _UNARY
    if isinstance(node, ast.Compare):
        return all(type(op) in _COMPARE for op in node.ops)
    if isinstance(node, ast.Attribute):
        return _name(node) is not None
    plain = (ast.Name, ast.BoolOp, ast.List, ast.Tuple, ast.expr_context, ast.boolop, ast.operator)
    return isinstance(node, (*plain, ast.unaryop, ast.cmpop))


def _value(node: ast.AST, values: Mapping[str, object]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    name = _name(node)
    if name is not None:
        return values[name]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, values) for item in node.elts]
    if isinstance(node, ast.BoolOp):
        return _bool(node, values)
    if isinstance(node, ast.Compare):
        return _compare(node, values)
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_value(node.operand, values))
    assert isinstance(node, ast.BinOp), f"unchecked node {node!r}"
    return _arithmetic(node, values)


def _arithmetic(node: ast.BinOp, values: Mapping[str, object]) -> int | float:
    left, right = _value(node.left, values), _value(node.right, values)
    # Numbers only: 'text' * 10**9 and text % values would be other languages.
    if not all(isinstance(side, int | float) for side in (left, right)):
        raise TypeError(f"arithmetic on {left!r} and {right!r}")
    result: int | float = _BINARY[type(node.op)](left, right)
    if abs(result) > _LARGEST:
        raise OverflowError(f"a number above {_LARGEST}")
    return result


def _bool(node: ast.BoolOp, values: Mapping[str, object]) -> bool:
    answers = (bool(_value(item, values)) for item in node.values)
    return all(answers) if isinstance(node.op, ast.And) else any(answers)


def _compare(node: ast.Compare, values: Mapping[str, object]) -> bool:
    left = _value(node.left, values)
    for op, item in zip(node.ops, node.comparators, strict=True):
        right = _value(item, values)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True
