"""Expressions of workflows, such as ``len(files) > 1000 and day != "sunday"``.

The language uses the syntax of Python expressions and nothing else of Python. Values are those of JSON. There are no
attributes, methods, comprehensions or powers: ``list.files`` and ``list["files"]`` read a field of an object. Integers
have 64 bits, other numbers are finite, text has at most ``MAX_TEXT`` characters. Each operation uses steps of a
budget, in proportion to the size of its text or lists, so that no expression takes much time or memory. Pure.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

#: The maximum depth of expressions, and of compared values.
MAX_DEPTH = 40
#: The maximum length of an expression, in characters.
MAX_SOURCE = 1000
#: The maximum length of text, in characters.
MAX_TEXT = 100_000
#: The maximum number of steps for all expressions of one task.
MAX_STEPS = 100_000
#: The number of characters that one step compares, searches or joins.
_CHARACTERS_A_STEP = 100
#: Longer text is not parsed as a number.
_MAX_DIGITS = 40
_MIN_WHOLE, _MAX_WHOLE = -(2**63), 2**63 - 1
_WHOLE = re.compile(r"\s*([+-]?[0-9]{1,19})\s*", re.ASCII)
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)\s*", re.ASCII)

_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_CALCULATE: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


class ExpressionError(ValueError):
    """An expression is invalid, or has no value with the names it is given."""


class Budget:
    """A limit on the number of steps that the expressions of one task may take."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps = self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Subtract steps from the budget.

        Raises:
            ExpressionError: Not enough steps remain.
        """
        self._left -= steps
        if self._left < 0:
            raise ExpressionError(f"it takes more than {self._steps:,} steps; compare smaller values")

    def spend_on_texts(self, *texts: str) -> None:
        """Subtract the steps of an operation that reads all of these texts.

        Raises:
            ExpressionError: Not enough steps remain.
        """
        self.spend(sum(map(len, texts)) // _CHARACTERS_A_STEP)


class Expression:
    """A valid expression. Immutable, thread-safe.

    Args:
        source: Its text.
    Raises:
        ExpressionError: It is invalid.
    """

    def __init__(self, source: str) -> None:
        self.source = source.strip()
        self._root = _parse(self.source)
        _SyntaxCheck(self.source).expression(self._root, 0)

    @property
    def names(self) -> Iterator[str]:
        """The names to which the expression refers, each with its first field, such as ``rows`` or ``list.files``."""
        fields: set[ast.Name] = set()
        for node in ast.walk(self._root):
            field = _get_field_name(node)
            if field is not None and isinstance(node.value, ast.Name):  # type: ignore[attr-defined]
                fields.add(node.value)  # type: ignore[attr-defined]
                yield f"{node.value.id}.{field}"  # type: ignore[attr-defined]
            elif isinstance(node, ast.Call):
                fields.add(node.func)  # type: ignore[arg-type]
            elif isinstance(node, ast.Name) and node not in fields:
                yield node.id

    def evaluate(self, names: Mapping[str, Any], budget: Budget | None = None) -> Any:
        """Evaluate the expression and return its value.

        Args:
            names: JSON values by name.
            budget: The budget from which the steps are subtracted. Default: a new one with ``MAX_STEPS``.
        Raises:
            ExpressionError: A name is unknown, types do not match, or a limit is exceeded.
        """
        return _Evaluation(self.source, names, Budget() if budget is None else budget).evaluate(self._root)

    def is_true(self, names: Mapping[str, Any], budget: Budget | None = None) -> bool:
        """Evaluate the expression and return whether its value is true: not ``None``, ``False``, 0 or empty.

        The arguments and errors are those of ``evaluate``.
        """
        return bool(self.evaluate(names, budget))


# Parsing


def _parse(source: str) -> ast.expr:
    if "${" in source:
        raise ExpressionError("an expression uses plain names: rows > 10, not ${rows} > 10")
    if len(source) > MAX_SOURCE:
        raise ExpressionError(f"it has {len(source):,} characters; an expression has at most {MAX_SOURCE:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in text
            return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ExpressionError(f"{source!r:.60} is not an expression: {why}") from None
    except (RecursionError, MemoryError):  # raised by the parser for deep nesting
        raise ExpressionError(_too_deep()) from None


def _too_deep() -> str:
    return f"it is nested more than {MAX_DEPTH} deep"


_LANGUAGE = "there are names, fields, numbers, text, lists, comparisons, in, and, or, not, + - * / // % and functions"


class _SyntaxCheck:
    """Raises for unsupported syntax."""

    def __init__(self, source: str) -> None:
        self._source = source

    def expression(self, node: ast.expr, depth: int) -> None:
        """Check that a syntax node and all nodes below it are supported.

        Args:
            node: The syntax node.
            depth: Its nesting depth.
        Raises:
            ExpressionError: A node is not supported, or the nesting is too deep.
        """
        if depth > MAX_DEPTH:
            raise ExpressionError(_too_deep())
        for part in self._operands(node):
            self.expression(part, depth + 1)

    def _operands(self, node: ast.expr) -> Sequence[ast.expr]:
        match node:
            case ast.Constant() | ast.Name():
                return self._leaf(node)
            case ast.Attribute():
                return (node.value,)
            case ast.Subscript() if not isinstance(node.slice, (ast.Slice, ast.Tuple)):
                return (node.value, node.slice)
            case ast.BoolOp():
                return node.values
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd()):
                return (node.operand,)
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                return (node.left, node.right)
            case ast.Compare() if all(type(each) in _COMPARISONS for each in node.ops):
                return (node.left, *node.comparators)
            case ast.List() | ast.Tuple():
                return node.elts
            case ast.Call():
                return self._arguments(node)
        raise ExpressionError(f"{_get_source_text(self._source, node)!r} is not supported; {_LANGUAGE}")

    def _leaf(self, node: ast.Constant | ast.Name) -> Sequence[ast.expr]:
        value = node.value if isinstance(node, ast.Constant) else None
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise ExpressionError(f"{value!r:.60} is not a number, text, True, False or None")
        _check_limits(value)
        return ()

    def _arguments(self, node: ast.Call) -> Sequence[ast.expr]:
        if not isinstance(node.func, ast.Name) or node.func.id not in _Evaluation.functions:
            functions = ", ".join(_Evaluation.functions)
            raise ExpressionError(
                f"{_get_source_text(self._source, node.func)!r} is not a function; there are {functions}"
            )
        if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            raise ExpressionError(f"{node.func.id}() takes values, without names or stars")
        if not node.args or (len(node.args) > 1 and node.func.id not in {"min", "max"}):
            raise ExpressionError(f"{node.func.id}() takes one value, not {len(node.args)}")
        return node.args


def _get_source_text(source: str, node: ast.expr) -> str:
    """Return the source text of a syntax node, for an error message."""
    return (ast.get_source_segment(source, node) or source)[:60]


def _get_field_name(node: ast.AST) -> str | None:
    """Return the name of the field that an expression such as ``list.files`` or ``list["files"]`` reads, or None."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return None


# Values


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    for kind, types in (("a boolean", bool), ("a number", (int, float)), ("text", str), ("a list", (list, tuple))):
        if isinstance(value, types):
            return kind
    return "an object" if isinstance(value, Mapping) else type(value).__name__


def _check_limits(value: Any) -> Any:
    """Return a number or a text unchanged if it is within the limits.

    Raises:
        ExpressionError: It exceeds the limits.
    """
    if isinstance(value, int) and not _MIN_WHOLE <= value <= _MAX_WHOLE:
        raise ExpressionError("a whole number has more than 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ExpressionError(f"{value} is not a finite number")
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise ExpressionError(f"a text has {len(value):,} characters; at most {MAX_TEXT:,}")
    return value


def _parse_number(value: Any, form: re.Pattern[str], read: Callable[[str], float]) -> float | None:
    """Return a number, or the number that a text contains. Return None for other values.

    Args:
        value: The value.
        form: The form that the text must have.
        read: Converts the text.
    """
    if isinstance(value, str):
        found = form.fullmatch(value) if len(value) <= _MAX_DIGITS else None
        return None if found is None else read(found.group(1))
    return value if _kind(value) == "a number" else None


def _is_equal(left: Any, right: Any, budget: Budget, depth: int = 0) -> bool:
    """Return whether two values are the same JSON. Values of different types are never equal.

    Args:
        left: A value.
        right: A value.
        budget: The budget that limits the comparison.
        depth: The nesting depth of the values.
    """
    budget.spend()
    if depth > MAX_DEPTH:
        raise ExpressionError(f"values that are compared are nested more than {MAX_DEPTH} deep")
    kind = _kind(left)
    if kind != _kind(right):
        return False
    if kind not in {"a list", "an object"}:
        if kind == "text":
            budget.spend_on_texts(left)
        return bool(left == right)
    if len(left) != len(right):
        return False
    if kind == "a list":
        return all(_is_equal(*pair, budget, depth + 1) for pair in zip(left, right, strict=True))
    return all(key in right and _is_equal(each, right[key], budget, depth + 1) for key, each in left.items())


class _Evaluation:
    """One evaluation of an expression."""

    def __init__(self, source: str, names: Mapping[str, Any], budget: Budget) -> None:
        self._source = source
        self._names = names
        self._budget = budget

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of a syntax node."""
        self._budget.spend()
        return self._kinds[type(node)](self, node)

    def _describe(self, node: ast.expr, value: Any) -> str:
        """Return an operand and its value as text for an error message."""
        source = _get_source_text(self._source, node)
        if isinstance(node, ast.Constant) or value is None:
            return f"{source} is {_kind(value)}"
        shown = f" {value!r:.40}" if isinstance(value, (str, int, float)) else ""
        return f"{source} is {_kind(value)}{shown}"

    def _type_error(self, operator: str, *operands: tuple[ast.expr, Any]) -> ExpressionError:
        said = ", and ".join(self._describe(*each) for each in operands)
        kinds = {_kind(value) for _, value in operands}
        hint = ""
        if kinds == {"text", "a number"}:
            text = next(_get_source_text(self._source, node) for node, value in operands if isinstance(value, str))
            hint = f"; write int({text}) if it is a number" if operator != "in" else ""
        return ExpressionError(f"{operator!r} cannot be used here: {said}{hint}")

    # Names and fields

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self._names:
            raise ExpressionError(f"there is no {node.id!r}: neither a parameter nor an output of an earlier task")
        return _check_limits(self._names[node.id])

    def _field(self, of: ast.expr, key: Any) -> Any:
        whole = self.evaluate(of)
        source = _get_source_text(self._source, of)
        if isinstance(whole, Mapping) and isinstance(key, str):
            if key not in whole:
                raise ExpressionError(f"{source} has no {key!r:.60}; it has {', '.join(map(str, whole)):.200}")
            return _check_limits(whole[key])
        if isinstance(whole, (list, tuple)) and _kind(key) == "a number" and isinstance(key, int):
            if not -len(whole) <= key < len(whole):
                raise ExpressionError(f"{source} has {len(whole):,} items, none of them at {key}")
            return _check_limits(whole[key])
        raise ExpressionError(f"{self._describe(of, whole)}, which has no field {key!r:.60}")

    # Operators

    def _bool(self, node: ast.BoolOp) -> Any:
        is_and = isinstance(node.op, ast.And)
        found = None
        for each in node.values:
            found = self.evaluate(each)
            if bool(found) is not is_and:
                break
        return found

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            return not value
        sign = "-" if isinstance(node.op, ast.USub) else "+"
        if _kind(value) != "a number":
            raise self._type_error(sign, (node.operand, value))
        return _check_limits(-value if sign == "-" else value)

    def _binary(self, node: ast.BinOp) -> Any:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        operator = _ARITHMETIC[type(node.op)]
        kinds = {_kind(left), _kind(right)}
        if kinds != {"a number"} and not (operator == "+" and kinds == {"text"}):
            raise self._type_error(operator, (node.left, left), (node.right, right))
        if kinds == {"text"}:
            self._budget.spend_on_texts(left, right)
        try:
            return _check_limits(_CALCULATE[operator](left, right))
        except ArithmeticError as error:
            raise ExpressionError(f"{_get_source_text(self._source, node)}: {error}") from None

    def _compare(self, node: ast.Compare) -> bool:
        left_node, left = node.left, self.evaluate(node.left)
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(right_node)
            if not self._compare_values(_COMPARISONS[type(operator)], (left_node, left), (right_node, right)):
                return False
            left_node, left = right_node, right
        return True

    def _compare_values(self, operator: str, left: tuple[ast.expr, Any], right: tuple[ast.expr, Any]) -> bool:
        if operator in {"in", "not in"}:
            return self._contains(left, right) is (operator == "in")
        kinds = {_kind(left[1]), _kind(right[1])}
        if operator in {"==", "!="}:
            if len(kinds) > 1 and "None" not in kinds:
                raise self._type_error(operator, left, right)
            return _is_equal(left[1], right[1], self._budget) is (operator == "==")
        if kinds not in ({"a number"}, {"text"}):
            raise self._type_error(operator, left, right)
        if kinds == {"text"}:
            self._budget.spend_on_texts(left[1])
        return _ORDER[operator](left[1], right[1])

    def _contains(self, left: tuple[ast.expr, Any], right: tuple[ast.expr, Any]) -> bool:
        item, whole = left[1], right[1]
        if isinstance(whole, (list, tuple)):
            return any(_is_equal(item, each, self._budget) for each in whole)
        if isinstance(whole, (str, Mapping)) and isinstance(item, str):
            if isinstance(whole, str):
                self._budget.spend_on_texts(whole, item)
            return item in whole
        raise self._type_error("in", left, right)

    _kinds: ClassVar[Mapping[type[ast.expr], Callable[[_Evaluation, Any], Any]]] = {
        ast.Constant: lambda _, node: node.value,
        ast.Name: _name,
        ast.Attribute: lambda self, node: self._field(node.value, node.attr),
        ast.Subscript: lambda self, node: self._field(node.value, self.evaluate(node.slice)),
        ast.BoolOp: _bool,
        ast.UnaryOp: _unary,
        ast.BinOp: _binary,
        ast.Compare: _compare,
        ast.List: lambda self, node: [self.evaluate(each) for each in node.elts],
        ast.Tuple: lambda self, node: [self.evaluate(each) for each in node.elts],
        ast.Call: lambda self, node: self.functions[node.func.id](self, node.args),
    }

    # Functions

    def _len(self, nodes: Sequence[ast.expr]) -> int:
        value = self.evaluate(nodes[0])
        if not isinstance(value, (str, list, tuple, Mapping)):
            raise ExpressionError(f"len() takes text, a list or an object; {self._describe(nodes[0], value)}")
        return len(value)

    def _int(self, nodes: Sequence[ast.expr]) -> int:
        value = self.evaluate(nodes[0])
        number = _parse_number(value, _WHOLE, int)
        if number is None:
            raise ExpressionError(
                f"int() takes a number, or text that is a whole one; {self._describe(nodes[0], value)}"
            )
        return int(_check_limits(int(number)))

    def _float(self, nodes: Sequence[ast.expr]) -> float:
        value = self.evaluate(nodes[0])
        number = _parse_number(value, _NUMBER, float)
        if number is None:
            raise ExpressionError(f"float() takes a number, or text that is one; {self._describe(nodes[0], value)}")
        return float(_check_limits(float(number)))

    def _str(self, nodes: Sequence[ast.expr]) -> str:
        value = self.evaluate(nodes[0])
        if _kind(value) in {"a list", "an object"}:
            raise ExpressionError(f"str() takes text, a number, a boolean or None; {self._describe(nodes[0], value)}")
        return str(value)

    def _abs(self, nodes: Sequence[ast.expr]) -> Any:
        value = self.evaluate(nodes[0])
        if _kind(value) != "a number":
            raise ExpressionError(f"abs() takes a number; {self._describe(nodes[0], value)}")
        return _check_limits(abs(value))

    def _extreme(self, name: str, better: Callable[[Any, Any], bool], nodes: Sequence[ast.expr]) -> Any:
        values = [self.evaluate(each) for each in nodes]
        if len(values) == 1:
            if not isinstance(values[0], (list, tuple)) or not values[0]:
                said = self._describe(nodes[0], values[0])
                raise ExpressionError(f"{name}() takes several values, or a list of some; {said}")
            values = list(values[0])
        found = values[0]
        for each in values:
            self._budget.spend()
            kinds = {_kind(each), _kind(found)}
            if kinds not in ({"a number"}, {"text"}):
                raise ExpressionError(f"{name}() takes numbers or texts, not {' and '.join(sorted(kinds))}")
            if kinds == {"text"}:
                self._budget.spend_on_texts(each)
            found = each if better(_check_limits(each), found) else found
        return _check_limits(found)

    functions: ClassVar[Mapping[str, Callable[[_Evaluation, Sequence[ast.expr]], Any]]] = {
        "len": _len,
        "int": _int,
        "float": _float,
        "str": _str,
        "abs": _abs,
        "min": lambda self, nodes: self._extreme("min", _ORDER["<"], nodes),
        "max": lambda self, nodes: self._extreme("max", _ORDER[">"], nodes),
    }
