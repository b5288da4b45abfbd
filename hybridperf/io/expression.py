"""Arithmetic that users write: `tp*pp*dp == gpus`, `bytes / n_gpus >= 1024`.

Text is parsed by Python's own parser and read by a short list of what may stand in it; nothing of
it is ever run as code. All numbers are float64, so nothing overflows into another number; what has
no value (a division by zero) is NaN, and no comparison with it holds.

One walk gives columns of a sweep (NumPy) and traced numbers of a search (JAX).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from hybridperf.io import InputError, unknown

_LONGEST = 1000  # characters: deeper nesting than that is no formula
_ARITHMETIC: dict[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARISONS: dict[type, Callable] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
# name in an array module, the fewest and the most arguments
_FUNCTIONS = {
    "min": ("minimum", 2, 9), "max": ("maximum", 2, 9),
    "log2": ("log2", 1, 1), "ceil": ("ceil", 1, 1), "floor": ("floor", 1, 1),
}  # fmt: skip
_MAY_HOLD = "names, numbers, + - * / // % **, comparisons, and, or, not, " + ", ".join(_FUNCTIONS)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One side not above another: what a search makes of `a <= b` or, with `equal`, of `a == b`."""

    less: Expression
    more: Expression
    equal: bool

    def at(self, columns: Mapping[str, float]) -> tuple[float, float]:
        """Values of both sides (less, more) at one point."""
        return self.less.at(columns), self.more.at(columns)

    @property
    def text(self) -> str:
        """It in words that people wrote, the lesser side first."""
        return f"{self.less.text} {'==' if self.equal else '<='} {self.more.text}"


@dataclasses.dataclass(frozen=True)
class Expression:
    """One formula: `text` as it was written, the `names` in it, whether it answers yes or no."""

    text: str
    names: frozenset[str]
    is_condition: bool
    _tree: ast.expr = dataclasses.field(repr=False, compare=False)

    def numbers(self) -> set[str]:
        """Names that must be numbers: all but those that are only compared by == and !=."""
        nodes = list(ast.walk(self._tree))
        free: set[int] = set()
        for node in nodes:
            if isinstance(node, ast.Compare) and all(map(_is_equality, node.ops)):
                free |= {id(side) for side in (node.left, *node.comparators)}
        names = (node for node in nodes if isinstance(node, ast.Name) and id(node) not in free)
        return {node.id for node in names if node.id in self.names}

    def __call__(self, columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        """Its value for each of some rows [rows]: bool for a condition, else float64."""
        given = {name: np.asarray(columns[name]) for name in self.names}
        columns = {n: c if c.dtype.kind == "O" else c.astype(np.float64) for n, c in given.items()}
        with np.errstate(all="ignore"):  # divisions by zero give NaN
            value = _value(self._tree, columns, np)
        kind = bool if self.is_condition else np.float64
        return np.broadcast_to(np.asarray(value, kind), (rows,))

    def at(self, columns: Mapping[str, float]) -> float:
        """Value of the expression at one point, given its variables."""
        return float(self({name: np.array([value]) for name, value in columns.items()}, 1)[0])

    def traced(self, values: Mapping[str, Any], xp: Any) -> Any:
        """Its value from numbers of any kind; `xp` is `jax.numpy` or has its functions by name."""
        return _value(self._tree, values, xp)

    def divisors(self) -> list[Expression]:
        """What it divides by, the innermost last."""
        kinds = (ast.Div, ast.FloorDiv, ast.Mod)
        return [
            _side(node.right)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.BinOp) and isinstance(node.op, kinds)
        ]

    def comparisons(self, where: str) -> list[Comparison]:
        """A condition as sides not above others; not for what has no distance (or, not, !=)."""
        return _comparisons(self._tree, where)


def parse(text: Any, where: str) -> Expression:
    """A formula; `InputError` for anything but a formula."""
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
        expected = f"must be a formula as text of at most {_LONGEST} characters"
        raise InputError(f"{where} {expected}, got {str(text)[:60]!r}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        is_condition = _check(tree, where)
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", "nested too deeply")
        raise InputError(f"{where}: {text!r} is not a formula ({why})") from error
    nodes = list(ast.walk(tree))
    functions = {node.func for node in nodes if isinstance(node, ast.Call)}
    names = (node for node in nodes if isinstance(node, ast.Name) and node not in functions)
    return Expression(text, frozenset(node.id for node in names), is_condition, tree)


def known_formula(
    text: Any, where: str, known: Sequence[str], *, condition: bool = False,
    later: Collection[str] = (),
) -> Expression:  # fmt: skip
    """A formula that gives a number, or with `condition` yes or no, all of whose names are known.

    `later`: derived columns computed afterwards.
    """
    formula = parse(text, where)
    if condition and not formula.is_condition:
        got = f"got the number {formula.text!r}"
        raise InputError(f"{where} must be a condition such as a <= b, {got}")
    if formula.is_condition and not condition:
        raise InputError(f"{where} must be a number, got the condition {formula.text!r}")
    for name in sorted(formula.names):
        if name in known:
            continue
        if name not in later:
            raise unknown(f"name in {where}:", name, known, f"there are {', '.join(known)}")
        if where == f"derived {name}":
            raise InputError(f"{where} needs itself; a column cannot depend on itself")
        mend = f"write {name} above it, unless the two depend on each other"
        raise InputError(f"{where} needs {name!r}, which is worked out after it; {mend}")
    return formula


def _is_equality(op: ast.cmpop) -> bool:
    return isinstance(op, ast.Eq | ast.NotEq)


def _check(node: ast.expr, where: str) -> bool:
    """Whether a part of a formula is a condition; `InputError` where it is no number either."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float()) | ast.Name():
            return False
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _all((left, right), where, conditions=False)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _all((operand,), where, conditions=False)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _all((operand,), where, conditions=True)
        case ast.BoolOp(values=values):
            return _all(values, where, conditions=True)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _COMPARISONS for op in ops
        ):
            sides = [left, *others]
            numbers = [side for side in sides if not _is_word(side)]
            if len(numbers) < len(sides) and not all(map(_is_equality, ops)):
                rule = "words can be compared by == and != only"
                raise InputError(f"{where}: {rule}, got {ast.unparse(node)}")
            return not _all(numbers, where, conditions=False)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            _, least, most = _FUNCTIONS[name]
            if not least <= len(args) <= most:
                takes = least if least == most else f"{least} to {most}"
                raise InputError(f"{where}: {name} takes {takes} numbers, got {len(args)}")
            return _all(args, where, conditions=False)
    short = ast.unparse(node)[:60]
    raise InputError(f"{where}: {short!r} cannot stand in a formula, which may hold {_MAY_HOLD}")


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _all(nodes: Any, where: str, *, conditions: bool) -> bool:
    """`conditions`; `InputError` unless all nodes are conditions, or numbers without."""
    for node in nodes:
        if _check(node, where) != conditions:
            wanted = ("a number, got the condition", "a condition such as a == b, got")[conditions]
            raise InputError(f"{where}: expected {wanted} {ast.unparse(node)[:60]!r}")
    return conditions


def _value(node: ast.expr, columns: Mapping[str, Any], xp: ModuleType | Any) -> Any:
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, str) else np.float64(value)  # type: ignore[arg-type]  # _check let no other kind pass
        case ast.Name(id=name):
            return columns[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_value(left, columns, xp), _value(right, columns, xp))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return xp.logical_not(_value(operand, columns, xp))
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, columns, xp)
            return -value if isinstance(op, ast.USub) else value
        case ast.BoolOp(op=op, values=values):
            join = xp.logical_and if isinstance(op, ast.And) else xp.logical_or
            return functools.reduce(join, [_value(v, columns, xp) for v in values])
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_value(side, columns, xp) for side in (left, *others)]
            pairs = zip(ops, sides[:-1], sides[1:], strict=True)
            hold = [_COMPARISONS[type(op)](a, b) for op, a, b in pairs]
            return functools.reduce(xp.logical_and, hold) if len(hold) > 1 else hold[0]
        case ast.Call(func=ast.Name(id=name), args=args):
            function = getattr(xp, _FUNCTIONS[name][0])
            given = [_value(arg, columns, xp) for arg in args]
            return functools.reduce(function, given) if len(given) > 1 else function(given[0])
    raise AssertionError(ast.dump(node))  # _check let it pass


def _comparisons(node: ast.expr, where: str) -> list[Comparison]:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return [one for value in values for one in _comparisons(value, where)]
        case ast.Compare(left=left, ops=ops, comparators=others):
            if not any(isinstance(op, ast.NotEq) for op in ops):
                out = []
                for op, a, b in zip(ops, [left, *others][:-1], others, strict=True):
                    less, more = (b, a) if isinstance(op, ast.Gt | ast.GtE) else (a, b)
                    out.append(Comparison(_side(less), _side(more), isinstance(op, ast.Eq)))
                return out
    short = ast.unparse(node)[:60]
    rule = "a search takes <=, >=, == and their `and`"
    raise InputError(f"{where}: {short!r} has no distance from being true; {rule}")


def _side(node: ast.expr) -> Expression:
    return parse(ast.unparse(node), "a side of a condition")
