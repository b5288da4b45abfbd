"""Arithmetic that people write into a spec: `tp*pp*dp == gpus`, `bytes / n_gpus >= 1024`.

Text is parsed by Python's own parser and read by a short list of what may stand in it; nothing of it is ever run as code. All numbers are
float64, so nothing overflows into another number; what has no value (a division by zero) is NaN, and no comparison with it holds.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hybridperf.io import InputError

_LONGEST = 1000  # characters: deeper nesting than that is no formula
_ARITHMETIC: dict[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARISONS: dict[type, Callable] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_FUNCTIONS: dict[str, tuple[Callable, int, int]] = {  # how many arguments at least, at most
    "min": (lambda *given: _fold(np.minimum, given), 2, 9), "max": (lambda *given: _fold(np.maximum, given), 2, 9),
    "log2": (np.log2, 1, 1), "ceil": (np.ceil, 1, 1), "floor": (np.floor, 1, 1),
}  # fmt: skip
_MAY_HOLD = "names, numbers, + - * / // % **, comparisons, and, or, not, " + ", ".join(_FUNCTIONS)


@dataclasses.dataclass(frozen=True)
class Expression:
    """One formula: `text` as it was written, the `names` in it, whether it answers yes or no."""

    text: str
    names: frozenset[str]
    is_condition: bool
    _tree: ast.expr = dataclasses.field(repr=False, compare=False)

    def numbers(self) -> set[str]:
        """Names that must be numbers: all but those that are compared with words or with each other by == and !=."""
        free = {id(side) for node in ast.walk(self._tree) if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)
                if all(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops)}  # fmt: skip
        return {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name) and node.id in self.names and id(node) not in free}

    def __call__(self, columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        """Its value for each of some rows [rows]: bool for a condition, else float64."""
        with np.errstate(all="ignore"):  # divisions by zero say NaN and no more
            value = _value(self._tree, columns)
        return np.broadcast_to(np.asarray(value, bool if self.is_condition else np.float64), (rows,))


def parse(text: Any, where: str) -> Expression:
    """A formula from a spec; `InputError` for anything but a formula."""
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
        raise InputError(f"{where} must be a formula as text of at most {_LONGEST} characters, got {str(text)[:60]!r}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        is_condition = _check(tree, where)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: {text!r} is not a formula ({getattr(error, 'msg', 'nested too deeply')})") from error
    functions = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in functions)
    return Expression(text, names, is_condition, tree)


def _check(node: ast.expr, where: str) -> bool:
    """Whether a part of a formula is a condition; `InputError` where it is neither that nor a number."""
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return False
        case ast.Name():
            return False
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _numbers((left, right), where)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _numbers((operand,), where)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _conditions((operand,), where)
        case ast.BoolOp(values=values):
            return _conditions(values, where)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            words = [isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (left, *others)]
            if any(words) and not all(isinstance(op, ast.Eq | ast.NotEq) for op in ops):
                raise InputError(f"{where}: words can be compared by == and != only, got {ast.unparse(node)}")
            _numbers([side for side, word in zip((left, *others), words, strict=True) if not word], where)
            return True
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            _, least, most = _FUNCTIONS[name]
            if not least <= len(args) <= most:
                raise InputError(f"{where}: {name} takes {least if least == most else f'{least} to {most}'} numbers, got {len(args)}")
            return _numbers(args, where)
    raise InputError(f"{where}: {ast.unparse(node)[:60]!r} cannot stand in a formula, which may hold {_MAY_HOLD}")


def _numbers(nodes: Any, where: str) -> bool:
    for node in nodes:
        if _check(node, where):
            raise InputError(f"{where}: expected a number, got the condition {ast.unparse(node)[:60]!r}")
    return False


def _conditions(nodes: Any, where: str) -> bool:
    for node in nodes:
        if not _check(node, where):
            raise InputError(f"{where}: expected a condition such as a == b, got {ast.unparse(node)[:60]!r}")
    return True


def _value(node: ast.expr, columns: Mapping[str, np.ndarray]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, str) else np.float64(value)  # type: ignore[arg-type]  # _check let no other kind pass
        case ast.Name(id=name):
            column = np.asarray(columns[name])
            return column if column.dtype.kind == "O" else column.astype(np.float64)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_value(left, columns), _value(right, columns))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return np.logical_not(_value(operand, columns))
        case ast.UnaryOp(op=op, operand=operand):
            return -_value(operand, columns) if isinstance(op, ast.USub) else _value(operand, columns)
        case ast.BoolOp(op=op, values=values):
            return _fold(np.logical_and if isinstance(op, ast.And) else np.logical_or, [_value(v, columns) for v in values])
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_value(side, columns) for side in (left, *others)]
            held = [_COMPARISONS[type(op)](a, b) for op, a, b in zip(ops, sides[:-1], sides[1:], strict=True)]
            return _fold(np.logical_and, held)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name][0](*(_value(arg, columns) for arg in args))
    raise AssertionError(ast.dump(node))  # _check let it pass


def _fold(join: Callable, values: Any) -> Any:
    first, *rest = values
    for value in rest:
        first = join(first, value)
    return first
