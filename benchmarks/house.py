"""Size and density of `hybridperf/`, counted from its syntax trees (issue 47's table).

    python benchmarks/house.py              the counts, lines by room
    python benchmarks/house.py --helpers 6  one-use private helpers of at most 6 lines, by file

A *record type* is a `dataclass`, `NamedTuple`, `TypedDict`, pydantic model or `PyTreeNode`; a
*one-use private helper* is a function `_name` of a module whose name is read once in its file; a
*cache* is a decorator or call of `functools.cache`, `lru_cache` or of a name that ends in `cached`.
"""

from __future__ import annotations

import argparse
import ast
import collections
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "hybridperf"
RECORDS = {
    *("dataclass", "NamedTuple", "TypedDict", "BaseModel", "PyTreeNode", "Struct", "namedtuple"),
}
CACHES = {"cache", "lru_cache", "cached_property"}


def word(node: ast.expr) -> str:
    """Last word of a decorator, base or callee: `lru_cache` of `functools.lru_cache(maxsize=8)`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_cache(name: str) -> bool:
    return name in CACHES or name.endswith(("_cache", "cached"))


class House:
    """Counts over all modules of the package."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self.lines: collections.Counter[str] = collections.Counter()
        self.records = self.any = self.caches = 0
        self.helpers: list[tuple[str, str, int]] = []
        for path in sorted(package.rglob("*.py")):
            text, file = path.read_text(), str(path.relative_to(package))
            room = "/".join(file.split("/")[:-1][:2]) or "."
            self.lines[room] += text.count("\n")
            read: collections.Counter[str] = collections.Counter()
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    marks = {word(one) for one in (*node.decorator_list, *node.bases)}
                    self.records += bool(marks & RECORDS)
                elif isinstance(node, ast.FunctionDef):
                    self.caches += any(is_cache(word(one)) for one in node.decorator_list)
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    self.caches += is_cache(word(node.value))
                if isinstance(node, ast.Name):
                    read[node.id] += isinstance(node.ctx, ast.Load)
                    self.any += node.id == "Any"
                elif isinstance(node, ast.Attribute):
                    read[node.attr] += 1
            self.helpers += [
                (file, node.name, node.end_lineno - node.lineno + 1)
                for node in tree.body
                if isinstance(node, ast.FunctionDef) and node.end_lineno
                if node.name.startswith("_") and read[node.name] == 1
            ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--helpers", type=int, metavar="LINES", help="list the short ones")
    asked = parser.parse_args().helpers
    house = House()
    if asked is not None:
        for file, name, lines in house.helpers:
            if lines <= asked:
                print(f"{file}: {name}, {lines} lines")
        return
    for room, lines in sorted(house.lines.items()):
        print(f"{room:32} {lines:7,}")
    print(f"{'lines':32} {sum(house.lines.values()):7,}")
    print(f"{'record types':32} {house.records:7,}")
    print(f"{'one-use private helpers':32} {len(house.helpers):7,}")
    print(f"{'Any':32} {house.any:7,}")
    print(f"{'caches':32} {house.caches:7,}")


if __name__ == "__main__":
    main()
